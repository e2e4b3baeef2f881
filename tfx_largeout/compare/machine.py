# SPDX-License-Identifier: Apache-2.0
"""What a result was measured with: versions, processor, memory."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

_PACKAGES = ("tfx_largeout", "tensorflow", "keras", "numpy")


def describe_machine() -> dict[str, Any]:
    """Returns operating system, processor, number of cores that may be used, and memory."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": _cores(),
        "memory_gib": round(pages / 2**30, 1),
    }


def describe_versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that matter."""
    return {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
