# SPDX-License-Identifier: Apache-2.0
"""InvertedFile: lists of rows of W around centers; a query reads a few of them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import at_most_classes, integer_argument
from tfx_largeout.devices import HOST
from tfx_largeout.indexes.base import filled
from tfx_largeout.indexes.row_bounds import QuantizedRows, quantized
from tfx_largeout.indexes.row_lists import (
    RowLists,
    default_num_lists,
    default_num_probed,
    make_row_lists,
    rows_and_biases,
)
from tfx_largeout.ops.checks import require_shape
from tfx_largeout.ops.exact.bounded_top_k import (
    CLASSES_OF_BLOCK,
    BoundedTopK,
    ClassesOfLists,
    probed_top_k,
)
from tfx_largeout.ops.rows.variable_rows import bare_variable

_BLOCKS_AT_A_TIME = 2**10


@keras.saving.register_keras_serializable(package="tfx_largeout")
class InvertedFile(QuantizedRows):
    """Rows of W in lists around centers: a fast approximate search for the best classes.

    Classes are in `num_lists` lists around centers of k-means, by the distance between

        (w_c, b_c, sqrt(max(R^2 - |w_c|^2 - b_c^2, 0))),

    with R the 0.99 quantile of the lengths of (w, b): if all rows have the same length, the largest
    logit has the smallest distance. A query reads the `num_probed` lists with the largest <c, (h,
    1)> - |(h, 1)| min(|c|, R)^2 / (2 R), which are nearest to (h, 1) scaled to the length R, and
    returns their k best classes by the logits w_c . h + b_c. Classes of other lists are missed:
    measure the recall against the exact layer. Within the lists, rows are stored and ruled out as
    in `RowBounds`.

    **It does not follow W**: call `rebuild` after training, and after any other change of W. If a
    logit is out of its bounds, all of W is read. The present biases are used, but the lists depend
    on the biases at `rebuild`.

    The exact pass over all of W runs instead if an h is not finite, or longer than 2^50, or a
    center is NaN; without the custom ops, on a GPU, for W of float16 or float64; and if classes are
    spread over several workers.

    Cost: about D + 12 bytes per class and 20 D + 200 per list, as weights on the processor that are
    saved with the model; a query O((num_lists + C num_probed / num_lists) D), each on one thread.
    `rebuild` (only eagerly): k-means over a sample of 64 `num_lists` rows, and O(C num_lists D);
    memory for three more W.

    Args:
        num_lists: 1 to C; default sqrt(C), rounded.
        num_probed: The number of lists that a query reads, 1 to `num_lists`; default a sixteenth,
            rounded up.
        seed: The seed of k-means; the same seed gives the same lists.
        **kwargs: `name`, as for any Keras layer.

    Raises:
        RuntimeError: It is used before `build` or `rebuild` has run.
        ValueError: An argument is out of range, or the shape of W differs from the first one.

    References:
        Jégou, Douze, Schmid 2011, Product quantization for nearest neighbor search, section IV
        (the inverted file). Neyshabur, Srebro 2015, On symmetric and asymmetric LSHs for inner
        product search, section 4.2 (the last coordinate).
    """

    def __init__(
        self,
        num_lists: int | None = None,
        num_probed: int | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, value in (("num_lists", num_lists), ("num_probed", num_probed)):
            if value is not None:
                integer_argument(name, value, at_least=1)
        if num_lists is not None and num_probed is not None:
            _check_num_probed(num_probed, num_lists)
        self.num_lists, self.num_probed = num_lists, num_probed
        self.seed = integer_argument("seed", seed, at_least=0)

    def build(self, input_shape: tuple[int, int]) -> None:
        """Allocates memory for W `[C, D]`. All classes are read before `rebuild` has run."""
        num_classes, width = input_shape
        lists, _ = self._numbers(num_classes)
        # Each list fills whole blocks.
        blocks = num_classes // CLASSES_OF_BLOCK + lists
        blocks_of_lists = -(-lists // CLASSES_OF_BLOCK)
        self._shape = (num_classes, width)
        self.add_rows(blocks, width)
        with tf.device(HOST):
            of_rows, none = (blocks, CLASSES_OF_BLOCK), -1
            self.classes = self.add_derived("classes", filled(of_rows, np.int32, none))
            of_lists = (blocks_of_lists, CLASSES_OF_BLOCK)
            shape = (blocks_of_lists, width, CLASSES_OF_BLOCK)
            self.centers = self.add_derived("centers", filled(shape, np.float32))
            self.offsets = self.add_derived("offsets", filled(of_lists, np.float32))
            self.penalties = self.add_derived("penalties", filled(of_lists, np.float32))
            self.ends = self.add_derived("ends", filled((lists,), np.int32, none))
        self.built = True

    def rebuild(self, kernel: Any, bias: Any = None) -> None:
        """Rebuilds all lists from W `[C, D]` and b `[C]`.

        Raises:
            ValueError: W or b is not finite, or the shape of W differs from the first one. The
                lists are unchanged then.
            RuntimeError: It is called in a graph.
        """
        if not tf.executing_eagerly():
            raise RuntimeError("rebuild must be called outside of graphs; got a call in a graph")
        kernel = bare_variable(kernel)
        require_shape("kernel", "[C, D]", kernel, [None, None])
        if self.built:
            self.check_built_for(kernel)
        num_classes, width = map(int, kernel.shape)
        if bias is not None:
            bias = tf.convert_to_tensor(bias)
            require_shape("bias", "[C] with C of kernel", bias, [num_classes])
        lists, _ = self._numbers(num_classes)
        points = rows_and_biases(kernel, bias)
        if not np.isfinite(points).all():
            wrong = int(np.flatnonzero(~np.isfinite(points).all(axis=1))[0])
            raise ValueError(
                f"kernel and bias must be finite in float32; got one that is not in row {wrong}"
            )
        made = make_row_lists(points, lists, self.seed)
        if not self.built:
            self.build((num_classes, width))
        self._store(points[:, :width], made)

    def top_k(self, hidden: Any, kernel: Any, bias: Any, k: int) -> BoundedTopK:
        """Returns the best k classes, 0 <= k <= C, of the lists near h: see `probed_top_k`."""
        self.check_built_for(kernel)
        tables = (self.classes, self.centers, self.offsets, self.penalties, self.ends)
        lists = ClassesOfLists(*(bare_variable(table) for table in tables))
        _, num_probed = self._numbers(int(kernel.shape[0]))
        return probed_top_k(hidden, kernel, bias, self.rows, lists, k, num_probed)

    def get_config(self) -> dict[str, Any]:
        arguments = {name: getattr(self, name) for name in ("num_lists", "num_probed", "seed")}
        return {**super().get_config(), **arguments}

    def _numbers(self, num_classes: int) -> tuple[int, int]:
        """Returns the number of lists, and how many of them are read."""
        lists = self.num_lists or default_num_lists(num_classes)
        at_most_classes("num_lists", lists, num_classes)
        probed = self.num_probed or default_num_probed(lists)
        _check_num_probed(probed, lists)
        return lists, probed

    def _store(self, rows: np.ndarray, made: RowLists) -> None:
        """Stores rows of W in the order of their lists, in blocks."""
        blocks = -(-made.sizes // CLASSES_OF_BLOCK)
        ends = np.cumsum(blocks)
        first = (ends - blocks)[made.lists[made.order]] * CLASSES_OF_BLOCK
        classes = np.full(tuple(self.classes.shape), -1, np.int32)
        classes.reshape(-1)[first + made.ranks] = made.order
        tables = [table.numpy() for table in self.rows]
        for begin in range(0, len(classes), _BLOCKS_AT_A_TIME):
            place = slice(begin, begin + _BLOCKS_AT_A_TIME)
            ids = classes[place].reshape(-1)
            of_block = tf.constant(rows[ids] * (ids >= 0)[:, np.newaxis])
            for table, values in zip(tables, quantized(of_block), strict=True):
                table[place] = values
        # All classes are read until everything is stored.
        self.ends.assign(np.full(ends.shape, -1))
        for weight, table in zip(self.rows, tables, strict=True):
            weight.assign(table)
        self.classes.assign(classes)
        self.centers.assign(_in_blocks(made.centers[:, :-1]).transpose(0, 2, 1))
        self.offsets.assign(_in_blocks(made.centers[:, -1]))
        self.penalties.assign(_in_blocks(made.penalties))
        self.ends.assign(ends)


def _check_num_probed(num_probed: int, num_lists: int) -> None:
    if num_probed > num_lists:
        raise ValueError(f"num_probed must be at most num_lists={num_lists}; got {num_probed}")


def _in_blocks(values: np.ndarray) -> np.ndarray:
    """Reshapes values `[L, ...]` to `[ceil(L / 16), 16, ...]`, padded with zeros."""
    blocks = -(-len(values) // CLASSES_OF_BLOCK)
    whole = np.zeros((blocks * CLASSES_OF_BLOCK, *values.shape[1:]), np.float32)
    whole[: len(values)] = values
    return whole.reshape(blocks, CLASSES_OF_BLOCK, *values.shape[1:])
