# SPDX-License-Identifier: Apache-2.0
"""Which TensorFlow a build uses: an installed supported one, or else a new one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "custom_ops" / "build_backend.py"


@pytest.fixture
def backend():
    spec = importlib.util.spec_from_file_location("build_backend", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def install(tmp_path, monkeypatch, backend):
    """Puts versions of TensorFlow into folders, the first one on the path, then the environment."""

    def install(*versions):
        folders = []
        for number, version in enumerate(versions):
            folder = tmp_path / str(number)
            folders.append(str(folder))
            if version is not None:
                info = folder / f"tensorflow-{version}.dist-info"
                info.mkdir(parents=True)
                (info / "METADATA").write_text(
                    f"Metadata-Version: 2.1\nName: tensorflow\nVersion: {version}\n"
                )
                (info / "RECORD").write_text("tensorflow/__init__.py,sha256=a,1\n")
        monkeypatch.setattr(sys, "path", folders[:1])
        monkeypatch.setattr(backend.sysconfig, "get_path", lambda _: folders[-1])
        return folders

    return install


@pytest.mark.parametrize(
    ("versions", "minor", "place"),
    [
        (["2.21.0", None], "2.21", 0),  # in the build's own environment
        ([None, "2.20.1"], "2.20", 1),  # in the target environment
        (["2.20.0", "2.21.0"], "2.20", 0),
        (["2.18.0", "2.21.0"], "2.21", 1),  # an unsupported one is as good as none
    ],
)
def test_the_supported_one_that_is_there_is_taken(versions, minor, place, install, backend):
    folders = install(*versions)
    found = backend.find_tensorflow()
    assert (found.minor, found.folder) == (minor, folders[place])
    assert "tensorflow/__init__.py" in found.record
    assert backend._missing_tensorflow() == []


@pytest.mark.parametrize("versions", [[None, None], ["2.19.1", None], ["3.0.0", "2.22.0"]])
def test_else_the_newest_supported_one_is_asked_for(versions, install, backend, monkeypatch):
    install(*versions)
    assert backend.find_tensorflow() is None
    wanted = f"tensorflow=={backend.SUPPORTED[-1]}.*"
    for hook in ("get_requires_for_build_wheel", "get_requires_for_build_editable"):
        monkeypatch.setattr(backend.build_meta, hook, lambda settings: ["cmake"])
        assert getattr(backend, hook)() == ["cmake", wanted]
