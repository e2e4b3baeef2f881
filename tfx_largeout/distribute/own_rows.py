# SPDX-License-Identifier: Apache-2.0
"""OwnRows: saved arrays of all classes, as a worker that has some of them loads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfx_largeout.distribute.class_shards import classes_of_shard
from tfx_largeout.distribute.workers import Workers


def own_rows(
    store: Mapping[str, Any], variables: Sequence[Any], workers: Workers, owner: str
) -> Mapping[str, Any]:
    """Returns saved arrays; of those with a row a class, this worker's rows.

    Class c is row c // R of worker c % R.

    Args:
        store: What Keras hands to `load_own_variables`: arrays by the number of the variable.
        variables: Keras variables, in the order in which they were saved.
        workers: Those among which classes are spread.
        owner: Whose variables they are, for errors.
    """
    if workers.alone or isinstance(store, OwnRows):
        return store
    return OwnRows(store, variables, workers, owner)


class OwnRows(Mapping[str, Any]):
    """As `own_rows`, with the same arguments."""

    def __init__(
        self, store: Mapping[str, Any], variables: Sequence[Any], workers: Workers, owner: str
    ) -> None:
        self._store, self._variables = store, variables
        self._workers, self._owner = workers, owner

    def __getitem__(self, key: str) -> Any:
        """Returns an array.

        Raises:
            ValueError: It has rows for another number of classes.
        """
        array, variable = self._store[key], self._variables[int(key)]
        num_classes = classes_of_shard(variable)
        if num_classes is None:
            return array
        if len(array) != num_classes:
            raise ValueError(
                f"the saved weights must have the shapes of {self._owner}; got {len(array)} rows "
                f"for {variable.path}, which has {num_classes} over all workers"
            )
        return array[self._workers.rank :: self._workers.size]

    def __contains__(self, key: object) -> bool:
        return key in self._store

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.keys())

    def __len__(self) -> int:
        return len(self._store.keys())
