# SPDX-License-Identifier: Apache-2.0
"""The inputs of a model as named plain tensors, as in signatures."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

ONLY_INPUT = "inputs"


class ServingInputs:
    """The inputs of a signature, and their conversion to the model's inputs.

    A dense input is one tensor, named as the model's input is, or `"inputs"` if it is the only one.
    A sparse one is three, as in `tf.SparseTensor`: `NAME_indices` `[N, rank]` int64, sorted by
    rows, `NAME_values` `[N]`, and `NAME_dense_shape` `[rank]` int64.

    The signature is None, or as in `export`; errors: as `export`.
    """

    def __init__(self, model: keras.Model, signature: Any) -> None:
        structure = _own_inputs(model) if signature is None else signature
        leaves = keras.tree.flatten(structure)
        self._structure = structure
        self._inputs = [
            _Input(leaf, len(leaves) == 1, number) for number, leaf in enumerate(leaves)
        ]
        self.specs = [spec for each in self._inputs for spec in each.specs]
        _check_input_names([spec.name for spec in self.specs])

    def packed(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Returns the model's inputs from tensors in the order of `specs`."""
        left = list(tensors)
        leaves = []
        for each in self._inputs:
            leaves.append(each.joined(left[: len(each.specs)]))
            del left[: len(each.specs)]
        return keras.tree.pack_sequence_as(self._structure, leaves)

    def flat(self, inputs: Any) -> dict[str, tf.Tensor]:
        """Returns the tensors of a signature by name from the model's inputs."""
        values = keras.tree.flatten(self._as_nested(inputs))
        tensors = [
            tensor
            for each, value in zip(self._inputs, values, strict=True)
            for tensor in each.split(value)
        ]
        return {spec.name: tensor for spec, tensor in zip(self.specs, tensors, strict=True)}

    def _as_nested(self, inputs: Any) -> Any:
        if len(self._inputs) == 1:
            return inputs
        if isinstance(inputs, dict) and not isinstance(self._structure, dict):
            # As in functional models: by the names of inputs, not in the order of keys.
            names = [leaf.name for leaf in keras.tree.flatten(self._structure)]
            if set(names) - set(inputs):
                raise ValueError(
                    f"data must have the inputs {names} of the model; got {sorted(inputs)}"
                )
            return [inputs[name] for name in names]
        if isinstance(self._structure, (list, tuple)) and isinstance(inputs, (list, tuple)):
            inputs = type(self._structure)(inputs)  # data sets have only tuples
        keras.tree.assert_same_structure(self._structure, inputs)
        return inputs


class _Input:
    def __init__(self, leaf: Any, is_only: bool, number: int) -> None:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise TypeError(
                "input_signature must be made of tf.TensorSpec and tf.SparseTensorSpec; "
                f"got {leaf!r}"
            )
        if getattr(leaf, "ragged", False) or isinstance(leaf, tf.RaggedTensorSpec):
            raise ValueError(f"inputs must be dense or sparse for export; got a ragged one, {leaf}")
        name = ONLY_INPUT if is_only else getattr(leaf, "name", None) or f"input_{number}"
        self.is_sparse = isinstance(leaf, tf.SparseTensorSpec) or getattr(leaf, "sparse", False)
        if not tf.TensorShape(leaf.shape).rank:
            raise ValueError(f"inputs must have a batch dimension for export; got {leaf}")
        self.shape = [None, *leaf.shape[1:]]
        self.dtype = tf.as_dtype(leaf.dtype)
        if not self.is_sparse:
            self.specs = [tf.TensorSpec(self.shape, self.dtype, name)]
            return
        rank = len(self.shape)
        self.specs = [
            tf.TensorSpec([None, rank], tf.int64, f"{name}_indices"),
            tf.TensorSpec([None], self.dtype, f"{name}_values"),
            tf.TensorSpec([rank], tf.int64, f"{name}_dense_shape"),
        ]

    def joined(self, tensors: list[tf.Tensor]) -> Any:
        if not self.is_sparse:
            return tensors[0]
        indices, values, given = tensors
        # Known dimensions are written into the graph, since layers may need them.
        known = [given[axis] if size is None else size for axis, size in enumerate(self.shape)]
        shape = tf.stack([tf.cast(size, tf.int64) for size in known])
        name = self.specs[-1].name
        check = tf.debugging.assert_equal(
            given, shape, f"{name} must be {self.shape}, except for the unknown sizes"
        )
        with tf.control_dependencies([check]):
            return tf.SparseTensor(indices, tf.identity(values), shape)

    def split(self, value: Any) -> list[tf.Tensor]:
        if not self.is_sparse:
            return [tf.cast(tf.convert_to_tensor(value), self.dtype)]
        if not isinstance(value, tf.SparseTensor):
            value = tf.sparse.from_dense(value)
        return [value.indices, tf.cast(value.values, self.dtype), value.dense_shape]


def _check_input_names(names: list[str]) -> None:
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(
                f"inputs must have names that arguments may have in Python; got {name!r}"
            )
    if len(set(names)) < len(names):
        raise ValueError(f"inputs must have different names; got {names}")


def _own_inputs(model: keras.Model) -> Any:
    if isinstance(model, keras.Sequential):
        return model.inputs[0]
    if isinstance(model, keras.Model) and getattr(model, "inputs", None):
        return model.input
    raise ValueError(
        "input_signature must be given for a model that is neither functional nor sequential; "
        f"got none for {model!r}"
    )
