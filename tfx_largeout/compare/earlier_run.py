# SPDX-License-Identifier: Apache-2.0
"""EarlierRun: a finished run, to which heads are added."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from tfx_largeout.compare.results import HeadResult
from tfx_largeout.compare.settings import DataSettings, TrainingSettings


class EarlierRun(NamedTuple):
    """What `results.json` says.

    Attributes:
        configuration: All but the results.
        data_name: What the user calls the data.
        data: The data.
        training: What all heads have in common.
        results: The results of all heads.
    """

    configuration: dict[str, Any]
    data_name: str
    data: DataSettings
    training: TrainingSettings
    results: list[HeadResult]

    @classmethod
    def read(cls, file: Path) -> EarlierRun:
        """Reads a `results.json`.

        Raises:
            ValueError: It is none of `tfx-largeout compare`, as this version writes it.
        """
        try:
            content = json.loads(file.read_bytes())
            results = [HeadResult.from_json(fields) for fields in content.pop("heads")]
            del content["summary"]
            data, training = (
                _all_fields(kind, content[name])
                for kind, name in ((DataSettings, "data"), (TrainingSettings, "training"))
            )
            return cls(content, content["data_name"], data, training, results)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                "must be a folder with a results.json that this version of `tfx-largeout compare` "
                f"has written; got {str(file.parent)!r} ({type(error).__name__}: {error})"
            ) from None

    def without(self, heads: Collection[str]) -> EarlierRun:
        """Returns what is left when some heads are trained again.

        Raises:
            ValueError: One of them was trained to its end, with all seeds.
        """
        for head in heads:
            statuses = [result.status for result in self.results if result.head == head]
            if statuses and set(statuses) == {"done"}:
                raise ValueError(f"must be new to the results, or have failed there; got {head!r}")
        return self._replace(results=[r for r in self.results if r.head not in heads])

    def setting(self, name: str) -> Any:
        """Returns the value that an argument of the command had, or None if it is none of these."""
        if name == "data":
            return self.data_name
        values = {**dataclasses.asdict(self.data), **dataclasses.asdict(self.training)}
        return values.get(name)

    def has(self, name: str) -> bool:
        """Says whether an argument of the command is one of data or training."""
        fields = (*dataclasses.fields(DataSettings), *dataclasses.fields(TrainingSettings))
        return name == "data" or name in {field.name for field in fields}


def _all_fields(kind: Any, values: dict[str, Any]) -> Any:
    """Makes settings, of which none may be missing: its default may have been another one."""
    missing = {field.name for field in dataclasses.fields(kind)} - values.keys()
    if missing:
        raise KeyError(", ".join(sorted(missing)))
    return kind(**values)
