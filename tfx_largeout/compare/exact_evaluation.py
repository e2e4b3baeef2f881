# SPDX-License-Identifier: Apache-2.0
"""ExactEvaluation: P@k and the exact loss of any compiled model."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.heads.base import head_output
from tfx_largeout.heads.keras_losses_and_metrics import ignored_by, only_loss
from tfx_largeout.keras_internals import mask_of, set_mask
from tfx_largeout.metrics import ExactLoss, PrecisionAtK


class ExactEvaluation(keras.Model):
    """Evaluates a compiled model with P@1, P@3, P@5 and the exact loss, in Keras's `evaluate`.

    The model's metrics and losses are not used or changed. Its output comes from a head, or is
    `[..., C]`: logits or probabilities by its loss (`from_logits`; default: logits). For Keras's
    softmax or sigmoid, the logits before it are used. Probabilities p_c become the logits log p_c.

    Labels are class ids, in any form of `normalize_labels`, or rows `[..., C]` as for one-hot
    losses; entries above 0 are labels. Example weights are used.

    The attribute `num_classes` is C after an evaluation, and 0 before.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        self.num_classes = 0
        # In a function, so that Keras does not track the model as a part of this one.
        self._outputs = lambda x: model(x, training=False)
        loss = only_loss(model)
        self._from_logits, ignored = _from_logits(loss), ignored_by(loss)
        self.exact = [PrecisionAtK(k, ignore_class=ignored) for k in (1, 3, 5)]
        self.exact.append(ExactLoss(ignore_class=ignored))
        self.compile(run_eagerly=model.run_eagerly, jit_compile=False)

    def measure(self, data: dict[str, Any]) -> dict[str, float]:
        """Evaluates on the data of the arguments of `evaluate`."""
        values = self.evaluate(**data, verbose=0, return_dict=True)
        return {metric.name: float(values[metric.name]) for metric in self.exact}

    def test_step(self, data: Any) -> dict[str, Any]:
        """Adds a batch to the metrics."""
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        outputs = self._outputs(x)
        if not tf.is_tensor(outputs):
            raise ValueError(
                "each model must have one output, [..., C]; got outputs of type "
                f"{type(outputs).__name__}"
            )
        self.num_classes = outputs.shape[-1]
        has_head = head_output(outputs) is not None
        labels = _labels(y, outputs, has_head)
        scores = outputs if has_head else self._logits(outputs)
        for metric in self.exact:
            metric.update_state(labels, scores, weights)
        return {metric.name: metric.result() for metric in self.exact}

    def _logits(self, outputs: Any) -> Any:
        logits = getattr(outputs, "_keras_logits", None)
        if logits is None:
            logits = outputs if self._from_logits else tf.math.log(outputs)
        mask = mask_of(outputs)
        if mask is not None and mask_of(logits) is None:
            set_mask(logits, mask)
        return logits


def _from_logits(loss: Any) -> bool:
    """Returns whether a loss takes logits; None: unknown."""
    function = keras.losses.get(loss) if isinstance(loss, str) else loss
    if getattr(function, "__name__", "").endswith("_crossentropy"):  # a function: its defaults
        return False
    return bool(getattr(function, "from_logits", True))


def _labels(y: Any, outputs: Any, has_head: bool) -> Any:
    """Returns labels in a form for the metrics."""
    if not isinstance(y, tf.Tensor):
        return y
    wide = y.shape.rank == outputs.shape.rank and y.shape[-1] == outputs.shape[-1]
    if wide and (y.dtype.is_floating or not has_head):
        if y.shape.rank == 2:
            return tf.sparse.from_dense(tf.cast(y, tf.float32))
        return tf.where(tf.reduce_any(y > 0, axis=-1), tf.argmax(y, axis=-1), -1)
    return tf.cast(y, tf.int64) if y.dtype.is_floating else y
