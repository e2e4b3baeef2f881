# SPDX-License-Identifier: Apache-2.0
"""Libraries of earlier builds: which are used again, with files in place of a build."""

from __future__ import annotations

import importlib.util
import os
import shutil
import threading
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "custom_ops" / "build_cache.py"
NAMES = ["_tfx_largeout.so", "_tfx_largeout.json"]


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The module, with a cache and a tree of sources of the test's own."""
    spec = importlib.util.spec_from_file_location("build_cache", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TFX_CACHE", raising=False)
    (tmp_path / "custom_ops" / "tests").mkdir(parents=True)
    (tmp_path / "setup.py").write_text("")
    (tmp_path / "custom_ops" / "op.cc").write_text("int a;")
    return module


@pytest.fixture
def build(cache, tmp_path):
    """Does as setup.py does; returns the content of the library and whether it was built."""

    def run(content="built", compiler="c++", options=()):
        folder = tmp_path / "lib"
        shutil.rmtree(folder, ignore_errors=True)
        key = cache.key(tmp_path, compiler, list(options))
        built = key is None or not cache.restore(key, folder)
        if built:
            folder.mkdir(exist_ok=True)
            for name in NAMES:
                (folder / name).write_text(content)
            if key is not None:
                cache.keep(key, [folder / name for name in NAMES])
        assert sorted(path.name for path in folder.iterdir()) == sorted(NAMES)
        return (folder / NAMES[0]).read_text(), built

    return run


def entries(tmp_path):
    return list((tmp_path / "cache" / "tfx_largeout").iterdir())


def test_a_second_build_takes_the_files_of_the_first(build, tmp_path):
    assert build("first") == ("first", True)
    (tmp_path / "custom_ops" / "tests" / "op_test.cc").write_text("not part of the library")
    assert build("second") == ("first", False)


@pytest.mark.parametrize("what", ["content", "name", "new", "option", "compiler", "flags"])
def test_what_a_build_depends_on_makes_another_entry(build, tmp_path, monkeypatch, what):
    build("first")
    source = tmp_path / "custom_ops" / "op.cc"
    changed = {}
    if what == "content":
        source.write_text("int b;")
    elif what == "name":
        source.rename(source.with_name("other.cc"))
    elif what == "new":
        source.with_name("CMakeLists.txt").touch()
    elif what == "option":
        changed = {"options": ["-DTFX_CUDA=off"]}
    elif what == "compiler":
        (tmp_path / "cxx").write_text("#!/bin/sh\necho another 1.0\n")
        (tmp_path / "cxx").chmod(0o755)
        changed = {"compiler": str(tmp_path / "cxx")}
    else:
        monkeypatch.setenv("CXXFLAGS", "-O1")
    assert build("second", **changed) == ("second", True)
    assert len(entries(tmp_path)) == 2


def test_another_tensorflow_makes_another_entry(cache, build, monkeypatch):
    build("first")
    monkeypatch.setattr(cache.metadata, "version", lambda name: "2.0.0")
    assert build("second") == ("second", True)


@pytest.mark.parametrize("damage", ["library", "record", "digests", "no digests", "half", "list"])
def test_a_damaged_entry_is_built_again_and_replaced(build, tmp_path, damage):
    build("first")
    (entry,) = entries(tmp_path)
    if damage == "half":  # of a write that was cut off
        shutil.rmtree(entry)
        entry.mkdir()
        (entry / NAMES[0]).write_text("fir")
    elif damage == "library":
        (entry / NAMES[0]).write_text("fIrst")
    elif damage == "record":
        (entry / NAMES[1]).unlink()
    elif damage == "no digests":
        (entry / "digests.json").unlink()
    else:
        (entry / "digests.json").write_text("[]" if damage == "list" else "{")
    assert build("second") == ("second", True)
    assert build("third") == ("second", False)
    assert entries(tmp_path) == [entry]


def test_a_cache_that_cannot_be_written_is_no_error(build, tmp_path):
    (tmp_path / "cache").write_text("a file, so that no folder can be made in it")
    assert build("first") == ("first", True)
    assert build("second") == ("second", True)


def test_switched_off(build, tmp_path, monkeypatch):
    monkeypatch.setenv("TFX_CACHE", "off")
    assert build("first") == ("first", True)
    assert build("second") == ("second", True)
    assert not (tmp_path / "cache").exists()
    monkeypatch.setenv("TFX_CACHE", "never")
    with pytest.raises(ValueError, match="TFX_CACHE must be on or off; got 'never'"):
        build()


def test_the_entries_that_were_used_last_are_kept(cache, tmp_path):
    file = tmp_path / NAMES[0]
    file.write_text("content")
    for i in range(cache.ENTRIES):
        cache.keep(f"entry {i}", [file])
        os.utime(tmp_path / "cache" / "tfx_largeout" / f"entry {i}", (i, i))
    assert cache.restore("entry 0", tmp_path / "lib")
    cache.keep("last", [file])
    left = {path.name for path in entries(tmp_path)}
    assert left == {"entry 0", "last", *(f"entry {i}" for i in range(2, cache.ENTRIES))}


def test_readers_beside_writers_find_whole_entries(cache, tmp_path):
    contents = [letter * 100_000 for letter in "abcd"]
    found = []

    def write(content):
        folder = tmp_path / content[0]
        folder.mkdir()
        for name in NAMES:
            (folder / name).write_text(content)
        for _ in range(8):
            cache.keep("entry", [folder / name for name in NAMES])
            if cache.restore("entry", folder / "restored"):
                found.append([(folder / "restored" / name).read_text() for name in NAMES])

    writers = [threading.Thread(target=write, args=[content]) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert cache.restore("entry", tmp_path / "end")
    assert found
    assert all(first == second and first in contents for first, second in found)
    assert [path.name for path in entries(tmp_path)] == ["entry"]
