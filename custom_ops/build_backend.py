# SPDX-License-Identifier: Apache-2.0
"""setuptools' build backend, which builds against the installed TensorFlow.

pip builds in an isolated environment, for which it would unpack a second TensorFlow: half of the
installation time. This is skipped if the target environment already has a TensorFlow.
"""

from __future__ import annotations

import sys
import sysconfig
from importlib import metadata
from typing import Any, NamedTuple

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  the hooks that are not below

SUPPORTED = ("2.20", "2.21")  # minor versions; the newest last


class Found(NamedTuple):
    """The TensorFlow to build against.

    Attributes:
        minor: Its version, such as `2.21`.
        folder: The folder from which Python imports it.
        record: Its files with their digests.
    """

    minor: str
    folder: str
    record: str


def find_tensorflow() -> Found | None:
    """Returns the TensorFlow of the build, or else of the environment, if it is a supported one."""
    installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    for folder in dict.fromkeys([*sys.path, *installed]):
        for found in metadata.distributions(name="tensorflow", path=[folder]):
            minor = ".".join(found.version.split(".")[:2])
            if minor in SUPPORTED:
                return Found(minor, folder, found.read_text("RECORD") or "")
    return None


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """As setuptools', and a TensorFlow if there is none yet."""
    return build_meta.get_requires_for_build_wheel(config_settings) + _missing_tensorflow()


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """As for a wheel."""
    return build_meta.get_requires_for_build_editable(config_settings) + _missing_tensorflow()


def _missing_tensorflow() -> list[str]:
    return [] if find_tensorflow() else [f"tensorflow=={SUPPORTED[-1]}.*"]
