# SPDX-License-Identifier: Apache-2.0
"""CosineLogits: heads whose logits are W h + b, or cosines of rows of W and h, times a scale."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import flag_argument, full_name, number_argument
from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.ops.rows.unit_rows import at_norm_1, unit_rows
from tfx_largeout.statistics import TopScores


class CosineLogits(KernelHead):
    """A head with W and b that may normalise the rows of W and h.

    With a `cosine_scale` s the logits are

        o_c = s cos(theta_c) = <w_c, s h / ||h||>,   ||w_c|| = 1.

    Rows of W have norm 1 from the start. A step uses the gradient through w / ||w||, which at norm
    1 is g - w <w, g>, and divides the rows that it changed by their norms. Assigned rows
    (`set_weights`) are divided by their norms, too. So exact passes, `TopK`, indexes and `export`
    read W as it is, at no extra cost.

    A row of zeros has the logit 0 until its first step. If h is 0, the logits are 0 and the
    gradient is computed as if its norm were 1. bfloat16 rows have norm 1 up to rounding.

    Args:
        num_classes: The number of classes C, at least 2.
        use_bias: Whether there is a bias b `[C]`. Default None: only without `cosine_scale`, which
            does not allow a bias.
        kernel_initializer: The initializer of W `[C, D]`, or an array; with `cosine_scale`, rows
            are divided by their norms. Default `"glorot_uniform"`.
        bias_initializer: The initializer of b. Default `"zeros"`.
        cosine_scale: s, above 0; if it is learned, its initial value. Default None: the logits are
            W h + b.
        learn_scale: Whether the model's optimizer trains log s, a scalar weight. Default False.
        **kwargs: As `KernelHead`.

    Raises:
        ValueError: `cosine_scale` is not above 0 and finite; a flag is not True or False;
            `learn_scale` without `cosine_scale`, or `use_bias` with it.

    References:
        Wang and others 2017, NormFace: L2 Hypersphere Embedding for Face Verification. Radford and
        others 2021, Learning Transferable Visual Models From Natural Language Supervision (log s as
        a weight).
    """

    def __init__(
        self,
        num_classes: int,
        use_bias: bool | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        cosine_scale: float | None = None,
        learn_scale: bool = False,
        **kwargs: Any,
    ) -> None:
        if cosine_scale is not None:
            cosine_scale = number_argument("cosine_scale", cosine_scale, above=0)
            if use_bias not in (None, False):
                raise ValueError(
                    "use_bias must be False with cosine_scale, as s cos(theta) has no bias; got "
                    f"use_bias={use_bias!r}"
                )
        learn_scale = flag_argument("learn_scale", learn_scale)
        if learn_scale and cosine_scale is None:
            raise ValueError("learn_scale must be False without a cosine_scale; got True")
        super().__init__(
            num_classes,
            use_bias=cosine_scale is None if use_bias is None else use_bias,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            **kwargs,
        )
        self.cosine_scale = cosine_scale
        self.learn_scale = learn_scale

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        if self.cosine_scale is not None:  # also after `set_weights`, or from a file
            self._assign_kernel = self.kernel.assign
            self.kernel.assign = self._assign_at_norm_1
        if self.learn_scale:
            assert self.cosine_scale is not None
            start = math.log(self.cosine_scale)
            self.log_scale = self.add_weight(
                name="log_scale",
                shape=(),
                initializer=lambda shape, dtype: tf.constant(start, dtype),  # not through float32
                dtype=self.statistics_dtype,
                autocast=False,
            )

    @property
    def scale(self) -> tf.Tensor | None:
        """The present s, `[]`, with a gradient if it is learned; None for W h + b."""
        if self.cosine_scale is None:
            return None
        if self.learn_scale:
            return tf.exp(tf.convert_to_tensor(self.log_scale))
        return tf.constant(self.cosine_scale, self.statistics_dtype)

    def require_cosines(self, kind: type) -> None:
        """Raises a TypeError if statistics of a kind need s, and the head has none."""
        if self.cosine_scale is None:
            raise TypeError(
                f"{kind.__name__} need a head with a cosine_scale; got {full_name(self)}, whose "
                "logits are W h + b"
            )

    def linear_input(self, hidden: tf.Tensor) -> tf.Tensor:
        """As `Head`: s h / ||h||, in `statistics_dtype`; a result passed in again is kept."""
        scale = self.scale
        if scale is None:
            return hidden
        return scale * unit_rows(tf.cast(hidden, self.statistics_dtype))

    def logits(self, hidden: tf.Tensor) -> tf.Tensor:
        return super().logits(self.linear_input(hidden))

    def top_k(
        self,
        hidden: tf.Tensor,
        k: int,
        allowed: ClassFilter | None = None,
        temperature: Any = None,
    ) -> TopScores:
        return super().top_k(self.linear_input(hidden), k, allowed, temperature)

    def to_dense(self, **kwargs: Any) -> keras.layers.Dense:
        self.refuse_cosines("to_dense")
        return super().to_dense(**kwargs)

    def _assign_at_norm_1(self, value: Any) -> Any:
        rows = tf.cast(tf.convert_to_tensor(value), self.kernel.dtype)
        return self._assign_kernel(at_norm_1(rows, self.kernel.dtype))

    def _initial_kernel(self, shape: tuple[int, int], dtype: Any) -> tf.Tensor:
        if self.cosine_scale is None:
            return super()._initial_kernel(shape, dtype)
        return self.initial_rows(shape, dtype, unit_rows)
