# SPDX-License-Identifier: Apache-2.0
"""The index over W, which a head builds before its first draw and keeps up to date.

Its weights are derived from other weights, and can be rebuilt from them: `DerivedState`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.distribute.class_shard import ClassShard, mark_as_shard
from tfx_largeout.keras_internals import asks_for_shapes
from tfx_largeout.labels import Labels
from tfx_largeout.memory import Weight
from tfx_largeout.ops.class_rows import ClassRows
from tfx_largeout.ops.product_precision import keep_float32
from tfx_largeout.ops.rows.variable_rows import bare_variable
from tfx_largeout.statistics import TopScores


class DerivedState(keras.layers.Layer):
    """A layer whose weights are derived from other weights, as the tables of an index from W.

    If the number of workers changes, its weights are not redistributed, but rebuilt.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._first_values: dict[str, np.ndarray] = {}

    def start_anew(self) -> None:
        """Resets all weights to their initial values.

        The index of a head is built before the next draw: call this after `head.kernel.assign`.
        """
        for name, value in self._first_values.items():
            getattr(self, name).assign(value)

    def add_derived(
        self, name: str, value: np.ndarray, shard: ClassShard | None = None, class_axis: int = 0
    ) -> Any:
        """Adds a weight, which must become the attribute with this name.

        Args:
            name: The name of the weight.
            value: Its initial value, an array.
            shard: The classes of this worker, if the weight has a dimension of classes. Default
                None.
            class_axis: The dimension of classes. Default 0.
        """
        weight = self.add_weight(
            name=name,
            shape=value.shape,
            dtype=value.dtype.name,
            initializer=lambda shape, dtype: tf.constant(value, dtype),
            trainable=False,
            autocast=False,
        )
        self._first_values[name] = value
        if shard is not None:
            mark_as_shard(weight, shard, class_axis)
        return weight


def filled(shape: Sequence[int], dtype: Any, value: float = 0) -> np.ndarray:
    """Returns an array filled with one value, without using memory."""
    return np.broadcast_to(np.asarray(value, dtype), shape)


class OverRows(DerivedState):
    """A layer built over the rows of a W of a fixed shape. `build` sets `_shape`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._shape: tuple[int, int] | None = None

    def kernel_of(self, kernel: Any, build: bool = False) -> tf.Variable:
        """Returns W as TensorFlow's variable, after `check_built_for`; `build` builds it first."""
        kernel = bare_variable(kernel)
        keep_float32()
        if build and not self.built:
            self.build(tuple(kernel.shape))
        self.check_built_for(kernel)
        return kernel

    def check_built_for(self, kernel: Any) -> None:
        """Checks that the index was built for a W of this shape.

        Raises:
            RuntimeError: It was not built.
            ValueError: It was built for another shape.
        """
        self.require_built()
        if tuple(kernel.shape) != self._shape:
            raise ValueError(
                f"kernel must be [C, D] = {list(self._shape or [])}, for which the index was "
                f"built; got shape {list(kernel.shape)}"
            )

    def require_built(self) -> None:
        """Raises a RuntimeError if the index was not built."""
        if not self.built:
            raise RuntimeError("index must be built before it is asked: call index.rebuild(kernel)")


class SearchIndex(OverRows):
    """An index that finds the k best classes of a head with W and b, for `TopK`.

    `Head.top_k` is the exact search. To add one, implement `search`.
    """

    def search(
        self,
        head: Any,
        hidden: tf.Tensor,
        k: int,
        *,
        num_found: int | None = None,
        with_partition: bool = False,
        allowed: ClassFilter | None = None,
    ) -> TopScores:
        """Returns the k best classes of each example, by falling score, padded with -inf and -1.

        Args:
            head: A `KernelHead`.
            hidden: `[N, D]`.
            k: The number of classes, 0 <= k <= C.
            num_found: The number of classes whose exact logits are computed, for an index that
                finds classes first.
            with_partition: Whether to compute `log_partition`: over all classes, or the found ones.
            allowed: Which classes each example may find. Default: all.

        Raises:
            ValueError: The index was built for a W of another shape; `num_found` is above C.
            RuntimeError: The index was not built, or does not work with several workers.
        """
        raise NotImplementedError


class Index(OverRows):
    """A structure that follows W in training, and finds the classes that a step should use.

    A head calls `spread` and `build` when it is built, `build_once` before each draw, and `update`
    and `note` at the end of each step.

    To add one, implement `build`, which sets `_shape` and adds a weight `clock`, 0 until `rebuild`
    has run; `rebuild`, `update` and `health`; and `check_shape` if W is restricted.

    Attributes:
        spreads_classes: Whether it works if W has the rows of only some of the classes.
        follows_kernel: Whether it can be rebuilt from W.
        clock: A weight, `[]`, above 0 once `rebuild` has run.
    """

    spreads_classes: ClassVar[bool] = False
    follows_kernel: ClassVar[bool] = True
    clock: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._rows: Any = None  # the ClassRows, once it is built

    def spread(self, rows: ClassRows) -> None:
        """Sets, before it is built, the classes of the rows of W."""
        self._rows = rows

    def check_shape(self, num_classes: int, width: int) -> None:
        """Raises a ValueError if W `[C, D]` is not possible."""

    def weights_of(self, num_classes: int, width: int) -> list[Weight]:
        """Returns the weights that `build` would create for W `[C, D]`, without scalars.

        Default: the weights of a built index, else none.
        """
        return [Weight.of(each, "index") for each in self.variables]

    def workspace(self, num_classes: int) -> int:
        """Returns the bytes that `rebuild`, or a round over all rows, needs."""
        return 0

    def build_once(self, kernel: Any, bias: Any = None) -> None:
        """Calls `rebuild` if it was never called. Arguments, errors: as `rebuild`."""
        if asks_for_shapes():
            return  # Keras only infers shapes, and variables can't change.

        def build() -> tf.Tensor:
            self.rebuild(kernel, bias)
            return tf.constant(True)

        tf.cond(self.clock.value == 0, build, lambda: tf.constant(False))

    def rebuild(self, kernel: Any, bias: Any = None) -> None:
        """Rebuilds the index from W `[C, D]` and b `[C]`."""
        raise NotImplementedError

    def update(self, kernel: Any, bias: Any, touched: tf.Tensor) -> None:
        """Records the rows `[n]` that a step changed; -1 is skipped."""
        raise NotImplementedError

    def note(self, labels: Labels) -> None:
        """Records the labels of a step. The default does nothing."""

    def health(self, kernel: Any, bias: Any = None) -> dict[str, tf.Tensor]:
        """Returns measures of its quality, scalars."""
        raise NotImplementedError
