# SPDX-License-Identifier: Apache-2.0
"""Custom TensorFlow ops, each with a fallback that is composed of TensorFlow's.

The function of an op has an argument `implementation`. `"auto"`, the default: the custom op where
the library loads and serves the dtype, on a GPU if it has a kernel for it that is in use; else
TensorFlow's ops. `"op"` or `"composed"` to insist.

All of these functions raise

- ValueError: a static shape, or an argument that is no tensor, is wrong;
- TypeError: a dtype is wrong;
- RuntimeError: with `implementation="op"`, and the library is not there;
- tf.errors.InvalidArgumentError: what tensors hold is wrong (a number is not finite, an id out of
  range) or shapes that are known only when the graph runs. No variable is changed then.

None of what they return has a gradient.
"""
