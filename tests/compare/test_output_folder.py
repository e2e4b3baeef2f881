# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from tfx_largeout.compare.comparison import OutputFolder


@pytest.fixture
def earlier(tmp_path):
    """The folder of a run that is over."""
    folder = OutputFolder(str(tmp_path / "run"))
    folder.make()
    folder.results_json.write_text(json.dumps({"versions": {"tfx_largeout": "0.1.0"}}))
    folder.plot_png.touch()
    folder.page_html.touch()
    folder.log("old").touch()
    (folder.tensorboard / "old").mkdir()
    (folder.tensorboard / "old" / "events.out.tfevents.1.2").touch()
    return folder


def files_of(path):
    return {str(file.relative_to(path)) for file in path.rglob("*")}


def test_a_new_folder_each_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = set()
    for _ in range(3):
        folder = OutputFolder(None)
        folder.make()
        paths.add(str(folder.path))
    assert len(paths) == 3
    assert all(path.startswith("runs/compare-") for path in paths)


def test_an_empty_folder_may_be_used_and_a_full_one_not(tmp_path):
    folder = OutputFolder(str(tmp_path))
    folder.make()
    assert folder.tensorboard.is_dir() and folder.logs.is_dir()
    with pytest.raises(ValueError, match=f"unless --overwrite is given; got '{tmp_path}'"):
        OutputFolder(str(tmp_path))


def test_overwrite_deletes_results_alone_and_not_before_the_run_begins(earlier):
    mine = [earlier.path / "mine.txt", earlier.logs / "mine.txt", earlier.tensorboard / "a" / "b"]
    mine[2].parent.mkdir()
    for file in mine:
        file.write_text("keep")
    before = files_of(earlier.path)
    folder = OutputFolder(str(earlier.path), overwrite=True)
    folder.make()
    assert files_of(earlier.path) == before
    folder.begin_run()
    assert before - files_of(earlier.path) == {
        "comparison.html",
        "curves.png",
        "logs/old.log",
        "tensorboard/old",
        "tensorboard/old/events.out.tfevents.1.2",
    }


def test_a_run_that_never_began_leaves_no_trace(tmp_path, earlier):
    before = files_of(tmp_path)
    for path in (tmp_path / "a" / "b", earlier.path):
        folder = OutputFolder(str(path), overwrite=True)
        folder.make()
        folder.undo()
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("content", [None, "[]", "{}", "{", '{"versions": null}'])
def test_overwrite_refuses_a_folder_that_holds_something_else(tmp_path, content):
    (tmp_path / "logs").mkdir()
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    with pytest.raises(ValueError, match=rf"results\.json of .* for --overwrite; got '{tmp_path}'"):
        OutputFolder(str(tmp_path), overwrite=True)


def test_a_file_is_refused(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ValueError, match="must be a folder; got the file"):
        OutputFolder(str(file), overwrite=True)
