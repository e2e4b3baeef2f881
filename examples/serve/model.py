# SPDX-License-Identifier: Apache-2.0
"""Model: an exported model that takes texts, with only TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

Prediction = dict[str, str | int | float]


class Model:
    """The k best classes of texts.

    Args:
        folder: The folder that `tlo.export` wrote.

    Raises:
        OSError: There is no model in the folder.
        ValueError: The model does not take texts.
    """

    def __init__(self, folder: str) -> None:
        self._signatures = tf.saved_model.load(folder).signatures
        serve = self._signatures["serving_default"]
        inputs = serve.structured_input_signature[1]
        self.takes_exclude = "exclude" in inputs
        own = {name: spec for name, spec in inputs.items() if name != "exclude"}
        specs = [(spec.dtype, spec.shape.as_list()) for spec in own.values()]
        if specs != [(tf.string, [None])]:
            raise ValueError(f"the model must take texts, strings of shape [None]; got {inputs}")
        (self._input,) = own
        self.k = int(serve.structured_outputs["scores"].shape[-1])
        self.takes_num_probed = "with_num_probed" in self._signatures
        self([""])  # the first call is slow: don't let a client wait for it

    def __call__(
        self, texts: Sequence[str], num_probed: int | None = None, exclude: Sequence[int] = ()
    ) -> list[list[Prediction]]:
        """Returns the k best of each text, the best first, without some classes.

        Raises:
            tf.errors.InvalidArgumentError: `num_probed` is out of range, or an excluded class does
                not exist.
        """
        inputs = {self._input: tf.constant(texts, tf.string)}
        if self.takes_exclude:
            inputs["exclude"] = tf.tile(tf.constant([exclude], tf.int64), [len(texts), 1])
        if num_probed is None:
            answer = self._signatures["serving_default"](**inputs)
        else:
            number = tf.constant(num_probed)
            answer = self._signatures["with_num_probed"](**inputs, num_probed=number)
        ids, scores = answer["ids"].numpy().tolist(), answer["scores"].numpy().tolist()
        names = answer["names"].numpy().tolist() if "names" in answer else ids
        return [_predictions(*row) for row in zip(names, ids, scores, strict=True)]


def _predictions(
    names: list[bytes] | list[int], ids: list[int], scores: list[float]
) -> list[Prediction]:
    return [
        {"name": name.decode() if isinstance(name, bytes) else str(name), "id": id_, "score": score}
        for name, id_, score in zip(names, ids, scores, strict=True)
        if id_ >= 0  # -1: fewer than k were left or found
    ]
