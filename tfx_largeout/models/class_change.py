# SPDX-License-Identifier: Apache-2.0
"""ClassChange: changes the classes of arguments and arrays with one value per class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tfx_largeout.arguments import integer_argument
from tfx_largeout.class_counts import class_counts
from tfx_largeout.saving import ConstantArray, pack_array, unpack_array

_INITIALIZERS = {"kernel_initializer": 0, "embeddings_initializer": 0, "bias_initializer": 1}
_NOT_BY_CLASS = ("vocab_file", "num_reserved_ids")  # of TensorFlow's fixed_unigram


class ClassChange:
    """The classes of a new model: first the kept classes of an old model, then new ones.

    Attributes:
        old: The number of classes of the old model.
        new: The number of classes of the new model.
        keep: `[m]` int64: old ids, in the order of their new ones, 0 to m - 1.
        rows: Rows of W and of b for the new classes, `[new - m, D]` and `[new - m]`, or None.
        counts: How often each new class occurs; None: unknown.
        class_weights: Weights of the new classes.
    """

    def __init__(self, old: int, new_classes: int, keep: Any) -> None:
        self.old = old
        self.new = integer_argument("new_classes", new_classes, at_least=2)
        self.keep = _ids_argument(keep, old)
        if self.new < len(self.keep):
            raise ValueError(
                "new_classes must be at least the number of classes that are kept, "
                f"{len(self.keep)}; got {self.new}. `keep` names the classes that stay."
            )
        self.num_new = self.new - len(self.keep)
        self.rows: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
        self.counts: np.ndarray | None = None
        self.class_weights = np.ones(self.num_new)
        self._places = {int(c): place for place, c in enumerate(self.keep)}

    def numbers_argument(self, name: str, values: Any) -> np.ndarray:
        """Returns numbers of at least 0, one per new class."""
        array = class_counts(values, name) if np.size(values) else np.zeros(0)
        if len(array) != self.num_new:
            raise ValueError(
                f"{name} must have one number for each of the {self.num_new} new classes; got "
                f"{len(array)}"
            )
        return array

    def follow(self, old: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Returns the kept rows of an array `[old, ...]`, followed by new rows."""
        return np.concatenate([old[self.keep], last])

    def config_of_head(self, config: Any) -> Any:
        """Returns the configuration of a head, or of a part of it, with these classes."""
        if isinstance(config, list):
            return [self.config_of_head(item) for item in config]
        if not isinstance(config, dict):
            return config
        changes: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
            "num_classes": lambda value, _: self.new if value == self.old else value,
            "input_dim": lambda value, _: self.new,
            "num_selected": lambda value, _: value and min(value, self.new),
            "explicit_classes": lambda ids, _: [self._places[c] for c in ids if c in self._places],
            "first_id": lambda value, _: self._first_id(value),
            "counts": self._counts,
            "options": lambda options, _: self._tf_options(options),
            "sampler_options": lambda options, _: self._tf_options(options),
        }
        result = {}
        for name, value in config.items():
            if name in _INITIALIZERS and value is not None:
                result[name] = self._initializer(name, value)
            elif name in changes and value is not None:
                result[name] = changes[name](value, config)
            else:
                result[name] = self.config_of_head(value)
        return result

    def config_of_compile(self, config: Any) -> Any:
        """Returns the `compile` arguments for a head's output, with these classes."""
        if isinstance(config, (list, tuple)):
            return [self.config_of_compile(item) for item in config]
        if not isinstance(config, dict):
            return config
        changes: dict[str, Callable[[Any], Any]] = {
            "num_classes": lambda value: self.new if value == self.old else value,
            "ignore_class": lambda value: self._id_of("ignore_class", value),
            "class_id": lambda value: self._id_of("class_id", value),
            "target_class_ids": lambda ids: [self._id_of("target_class_ids", c) for c in ids],
            "allow": self._allowed,
            "class_weights": lambda weights: self._by_class(weights, self.class_weights),
            "label_counts": lambda counts: self._by_class(counts, self._counts_of_new()),
        }
        return {
            name: changes[name](value)
            if name in changes and value is not None
            else self.config_of_compile(value)
            for name, value in config.items()
        }

    def _allowed(self, ids: Any) -> Any:
        """Returns the ids of a metric's `allow`, packed as in a file, without removed classes."""
        if not isinstance(ids, str) or ":" not in ids:
            return ids  # of a metric that is not of this package
        old = unpack_array(ids)
        stay = [self._places[c] for c in old.tolist() if c in self._places]
        if not stay:
            raise ValueError(
                f"allow of a metric must have a class that stays; got {old}. `keep` names the "
                "classes that stay."
            )
        return pack_array(np.array(stay, old.dtype))

    def _counts_of_new(self) -> np.ndarray:
        return np.zeros(self.num_new, np.int64) if self.counts is None else self.counts

    def _counts(self, counts: Any, owner: dict[str, Any]) -> Any:
        last = self._counts_of_new()
        if owner.get("smoothing") == 0 and (last == 0).any():
            raise ValueError(
                "new_counts must be above 0 for every new class, as counts of the head have "
                f"smoothing=0; got {'none' if self.counts is None else last}"
            )
        return self._by_class(counts, last)

    def _by_class(self, values: Any, last: np.ndarray) -> Any:
        """Returns an array with one number per class for these classes, packed as in a file."""
        array = unpack_array(values) if isinstance(values, str) else np.asarray(values)
        if array.shape != (self.old,):
            return values
        array = self.follow(array, last if last.size else last.astype(array.dtype))
        return pack_array(array) if isinstance(values, str) else array.tolist()

    def _initializer(self, name: str, config: Any) -> Any:
        """Returns an initializer of weights: an array gets new rows, others get new counts."""
        if not isinstance(config, dict) or config.get("class_name") != "ConstantArray":
            return self.config_of_head(config)
        array = ConstantArray.from_config(config["config"]).value
        if array.shape[:1] != (self.old,):
            return config
        last = self.rows[_INITIALIZERS[name]]
        if last is None and self.num_new:
            argument = ("new_rows", "new_bias")[_INITIALIZERS[name]]
            raise ValueError(
                f"{argument} must be given for {self.num_new} new classes, as the {name} of the "
                f"head is an array of the {self.old} old ones; got None"
            )
        array = self.follow(array, array[:0] if last is None else last.astype(array.dtype))
        return {**config, "config": ConstantArray(array).get_config()}

    def _first_id(self, first_id: int) -> int:
        """Returns `first_id`: classes below it are never drawn, and must stay the first."""
        low = self.keep < first_id
        stay = int(low.sum())
        if not low[:stay].all():
            raise ValueError(
                f"keep must begin with those classes below first_id={first_id} of the sampler that "
                f"it keeps, which are never drawn; got {self.keep[low]} at the places "
                f"{np.flatnonzero(low)}"
            )
        return stay

    def _tf_options(self, options: dict[str, Any]) -> dict[str, Any]:
        for name in _NOT_BY_CLASS:
            if options.get(name):
                raise ValueError(
                    f"options of the sampler must not have {name}, which can't follow the classes; "
                    f"got {options[name]!r}"
                )
        counts = self._counts_of_new()
        if "unigrams" in options and self.counts is None and self.num_new:
            raise ValueError(
                "new_counts must be given for the unigrams of the sampler, where 0 would be a "
                "class that is never drawn; got None"
            )
        follows = {"unigrams": lambda value: self._by_class(value, counts)}
        return {name: follows.get(name, lambda x: x)(value) for name, value in options.items()}

    def _id_of(self, name: str, old_id: int) -> int:
        """Returns the new id of a class; an id outside of the classes is unchanged."""
        if old_id in self._places:
            return self._places[old_id]
        if 0 <= old_id < max(self.old, self.new):
            reason = "which is not kept" if old_id < self.old else "which would be a new class"
            raise ValueError(
                f"{name} of a loss or metric must be one of the classes that stay, or no class of "
                f"either model; got {old_id}, {reason}"
            )
        return old_id


def _ids_argument(keep: Any, num_classes: int) -> np.ndarray:
    if keep is None:
        return np.arange(num_classes)
    ids = np.asarray(keep)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(f"keep must be a sequence of ids of classes, integers; got {keep!r}")
    ids = ids.astype(np.int64)
    wrong = (ids < 0) | (ids >= num_classes)
    if wrong.any():
        raise ValueError(
            f"keep must have ids of old classes, in [0, {num_classes}); got {ids[wrong.argmax()]}"
        )
    unique, numbers = np.unique(ids, return_counts=True)
    if len(unique) < len(ids):
        raise ValueError(
            f"keep must have each class once; got {unique[numbers.argmax()]} {numbers.max()} times"
        )
    return ids
