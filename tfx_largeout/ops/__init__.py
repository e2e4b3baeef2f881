# SPDX-License-Identifier: Apache-2.0
"""Custom TensorFlow ops, each with a fallback composed of TensorFlow's ops.

The function of an op has an argument `implementation`. `"auto"`, the default: the custom op if the
library loads and supports the dtype (on a GPU: if its kernel is in use); else TensorFlow's ops.
`"op"` and `"composed"` force one of them.

All of these functions raise

- ValueError: a static shape, or an argument that is not a tensor, is wrong;
- TypeError: a dtype is wrong;
- RuntimeError: with `implementation="op"`, if the library is missing;
- tf.errors.InvalidArgumentError: values in tensors are wrong (a number is not finite, an id out of
  range), or shapes known only when the graph runs. No variable is changed then.

The results have no gradient.
"""
