# SPDX-License-Identifier: Apache-2.0
"""recall: the share of the best classes that an exported model finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.class_filter import Findable
from tfx_largeout.heads.base import examples_that_count
from tfx_largeout.layers.top_k import exact_best, filter_of, output_of_logits
from tfx_largeout.serving.serving_inputs import ServingInputs

_BATCH = 256


def recall(
    model: keras.Model,
    folder: str | Path,
    data: Any,
    num_probed: int | None = None,
    input_signature: Any = None,
    allow: Any = None,
) -> float:
    """Returns the share of the k best classes that an exported model finds: its recall@k.

    recall@k = mean over examples of |ids exported & ids of the k best classes by `model`| / k

    Positions that a Keras mask leaves out don't count. Inputs `exclude` and `category` of the
    export are set to -1: recall is measured over all classes, or the classes of `allow`.

    Cost: two passes over the examples, one of them exact: O(N C D).

    Args:
        model: The model that was exported.
        folder: The folder that `export` wrote. It determines k.
        data: Examples: a `tf.data.Dataset` of batches, `x` or `(x, y)`; or x, in a form for
            `tf.data.Dataset.from_tensor_slices`.
        num_probed: The number of lists or tables to read. Default: as in the exported model.
        input_signature: As for `export`.
        allow: As for `export`.

    Raises:
        ValueError: There are no examples; `data` is nested differently from the model's inputs;
            `num_probed` is given, and there is no index; `export` did not write the folder.
    """
    loaded = tf.saved_model.load(str(folder))
    if "serving_default" not in loaded.signatures:
        raise ValueError(
            "folder must be of a model that tlo.export wrote, with a signature serving_default; "
            f"got {str(folder)!r}, with {sorted(loaded.signatures)}"
        )
    name = "serving_default" if num_probed is None else "with_num_probed"
    if name not in loaded.signatures:
        raise ValueError(
            f"num_probed must be None for a model that was exported without index; got {num_probed}"
        )
    approximate = loaded.signatures[name]
    more = {} if num_probed is None else {"num_probed": tf.constant(num_probed, tf.int32)}
    asked = {"exclude", "category"} & set(approximate.structured_input_signature[1])
    findable = Findable.of(allow, None)
    k = approximate.structured_outputs["ids"].shape[-1]

    @tf.function(reduce_retracing=True)
    def exact(x: Any) -> tuple[tf.Tensor, tf.Tensor]:
        logits = model(x, training=False)
        output = output_of_logits(logits)
        groups = findable.groups(output.head.num_classes)
        groups = None if groups is None else tf.constant(groups)
        allowed = filter_of(output, findable, groups, None, None)
        best = exact_best(output.head, output.flat_hidden, k, allowed).ids
        return output.unflatten(best), examples_that_count(logits, output)

    inputs = ServingInputs(model, input_signature)
    if not isinstance(data, tf.data.Dataset):
        data = tf.data.Dataset.from_tensor_slices(data).batch(_BATCH)
    shares = []
    for batch in data:
        x = batch[0] if isinstance(batch, tuple) else batch
        given = inputs.flat(x)
        best, counts = (tensor.numpy() for tensor in exact(x))
        nobody = tf.fill([*best.shape[:-1], 1], tf.constant(-1, tf.int64))
        none = {name: nobody if name == "exclude" else nobody[..., 0] for name in asked}
        found = approximate(**given, **more, **none)["ids"].numpy()
        is_found = (best[..., np.newaxis] == found[..., np.newaxis, :]).any(axis=-1)
        shares.append(is_found.reshape(-1, k)[counts])
    if not any(map(len, shares)):
        raise ValueError("data must have at least one example; got none")
    return float(np.concatenate(shares).mean())
