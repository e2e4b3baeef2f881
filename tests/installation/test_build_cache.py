# SPDX-License-Identifier: Apache-2.0
"""A built library is copied from the cache; an incomplete one is built again."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "custom_ops" / "build_cache.py"
SPEC = importlib.util.spec_from_file_location("build_cache", FILE)
module = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(module)
BuildCache = module.BuildCache


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "sources"
    (folder / "core").mkdir(parents=True)
    (folder / "core" / "a.cc").write_text("int a;")
    return folder


@pytest.fixture
def stored(sources, tmp_path):
    """An entry with one file, and the folder of all entries."""
    built = tmp_path / "built.so"
    built.write_bytes(b"code")
    BuildCache(sources, {"compiler": "12"}, tmp_path / "cache").store([built])
    return tmp_path / "cache"


def fetched(sources, cache, tmp_path, compiler="12"):
    target = tmp_path / "target"
    if not BuildCache(sources, {"compiler": compiler}, cache).fetch(target):
        assert not target.exists()
        return None
    return {file.name: file.read_bytes() for file in target.iterdir()}


def test_an_entry_is_copied(sources, stored, tmp_path):
    assert fetched(sources, stored, tmp_path) == {"built.so": b"code"}
    assert [path.name[:6] == "unfini" for path in stored.iterdir()] == [False]


def test_another_compiler_has_another_entry(sources, stored, tmp_path):
    assert fetched(sources, stored, tmp_path, "13") is None


@pytest.mark.parametrize("change", ["other", "more", "renamed"])
def test_other_sources_have_another_entry(sources, stored, tmp_path, change):
    file = sources / "core" / "a.cc"
    if change == "other":
        file.write_text("int b;")
    elif change == "more":
        (sources / "b.h").write_text("")
    else:
        file.rename(file.with_name("c.cc"))
    assert fetched(sources, stored, tmp_path) is None


@pytest.mark.parametrize("damage", ["cut", "lost", "no digests", "bad digests"])
def test_a_damaged_entry_is_none_and_is_replaced(sources, stored, tmp_path, damage):
    (entry,) = stored.iterdir()
    if damage == "cut":
        (entry / "built.so").write_bytes(b"cod")
    elif damage == "lost":
        (entry / "built.so").unlink()
    elif damage == "no digests":
        (entry / "digests.json").unlink()
    else:
        (entry / "digests.json").write_text("[1]")
    assert fetched(sources, stored, tmp_path) is None
    BuildCache(sources, {"compiler": "12"}, stored).store([tmp_path / "built.so"])
    assert fetched(sources, stored, tmp_path) == {"built.so": b"code"}


def test_where_nothing_can_be_kept_there_is_no_entry(sources, tmp_path):
    (tmp_path / "file").write_text("")
    cache = BuildCache(sources, {}, tmp_path / "file" / "cache")
    cache.store([sources / "core" / "a.cc"])
    assert not cache.fetch(tmp_path / "target")


def test_a_build_that_failed_leaves_no_entry(sources, tmp_path):
    cache = BuildCache(sources, {}, tmp_path / "cache")
    cache.store([tmp_path / "not_built.so"])
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_newest_entries_are_kept(sources, tmp_path):
    for number in range(12):
        cache = BuildCache(sources, {"compiler": str(number)}, tmp_path / "cache")
        cache.store([sources / "core" / "a.cc"])
        for entry in (tmp_path / "cache").iterdir():
            os.utime(entry, (entry.stat().st_atime - 9, entry.stat().st_mtime - 9))
    found = [fetched(sources, tmp_path / "cache", tmp_path, str(number)) for number in range(12)]
    assert [entry is not None for entry in found] == [False] * 4 + [True] * 8
