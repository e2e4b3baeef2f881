# SPDX-License-Identifier: Apache-2.0
"""ExactEvaluation: P@k and the exact loss of any model, whatever it was compiled with."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.heads.base import head_output
from tfx_largeout.keras_internals import mask_of, set_mask
from tfx_largeout.metrics import ExactLoss, PrecisionAtK


class ExactEvaluation(keras.Model):
    """Evaluates a compiled model with P@1, P@3, P@5 and the exact loss, in Keras's `evaluate`.

    The model's metrics and losses are left alone. Its output is a head's; or logits or
    probabilities `[..., C]`: what its loss says (`from_logits`), logits where that says nothing.
    Behind Keras's softmax or sigmoid the logits themselves are taken. Of probabilities p_c,
    log p_c are logits.

    Labels are class ids, in any form of `normalize_labels`, or rows `[..., C]` as one-hot losses
    have them; entries above 0 are labels. Example weights count.

    The attribute `num_classes` is C, once there was an evaluation; before it 0.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        self.num_classes = 0
        # In a function, where Keras does not see that this model has another one.
        self._outputs = lambda x: model(x, training=False)
        self._from_logits = _from_logits(model.loss)
        ignored = getattr(model.loss, "ignore_class", None)
        self.exact = [PrecisionAtK(k, ignore_class=ignored) for k in (1, 3, 5)]
        self.exact.append(ExactLoss(ignore_class=ignored))
        self.compile(run_eagerly=model.run_eagerly, jit_compile=False)

    def measure(self, data: dict[str, Any]) -> dict[str, float]:
        """Evaluates on the data that the arguments of `evaluate` name."""
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
    """Says whether a loss takes logits, or says nothing."""
    function = keras.losses.get(loss) if isinstance(loss, str) else loss
    if getattr(function, "__name__", "").endswith("_crossentropy"):  # a function, by its defaults
        return False
    return bool(getattr(function, "from_logits", True))


def _labels(y: Any, outputs: Any, has_head: bool) -> Any:
    """Returns labels in a form that the metrics take."""
    if not isinstance(y, tf.Tensor):
        return y
    wide = y.shape.rank == outputs.shape.rank and y.shape[-1] == outputs.shape[-1]
    if wide and (y.dtype.is_floating or not has_head):
        if y.shape.rank == 2:
            return tf.sparse.from_dense(tf.cast(y, tf.float32))
        return tf.where(tf.reduce_any(y > 0, axis=-1), tf.argmax(y, axis=-1), -1)
    return tf.cast(y, tf.int64) if y.dtype.is_floating else y
