# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tfx_largeout.compare.output_folder import OutputFolder


def test_a_new_folder_each_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = {str(OutputFolder(None).path) for _ in range(3)}
    assert len(paths) == 3
    assert all(path.startswith("runs/compare-") for path in paths)


def test_an_empty_folder_may_be_used_and_a_full_one_not(tmp_path):
    folder = OutputFolder(str(tmp_path))
    assert folder.tensorboard.is_dir() and folder.logs.is_dir()
    with pytest.raises(ValueError, match=f"unless --overwrite is given; got '{tmp_path}'"):
        OutputFolder(str(tmp_path))


def test_overwrite_deletes_results_alone(tmp_path):
    folder = OutputFolder(str(tmp_path))
    (folder.tensorboard / "old").mkdir()
    folder.summary_csv.touch()
    mine = tmp_path / "mine.txt"
    mine.write_text("keep")
    OutputFolder(str(tmp_path), overwrite=True)
    assert mine.read_text() == "keep"
    assert not folder.summary_csv.exists()
    assert list(folder.tensorboard.iterdir()) == []


def test_a_file_is_refused(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ValueError, match="must be a folder; got the file"):
        OutputFolder(str(file), overwrite=True)
