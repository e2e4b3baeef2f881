# SPDX-License-Identifier: Apache-2.0
"""Functions that write files: a fault leaves the old files, and nothing else."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import pytest
from variants import thorough

import tfx_largeout as tlo
from tfx_largeout import written_whole as module
from tfx_largeout.compare.choose_settings import ChosenSettings
from tfx_largeout.compare.comparison import Comparison, OutputFolder
from tfx_largeout.datasets import read_xc, write_predictions
from tfx_largeout.written_whole import written_whole

CLASSES = 3000


def content(path: Path) -> dict[str, int]:
    """Returns the contents of a folder, link by link and file by file."""
    return {
        str(found.relative_to(path)): zlib.crc32(found.read_bytes()) if found.is_file() else -1
        for found in path.rglob("*")
    }


def write(path: Path, text: str) -> None:
    with written_whole(path) as unfinished:
        unfinished.write_text(text)


# Its guarantees


def test_a_file_takes_its_name_when_it_is_on_the_disk(tmp_path):
    path, done = tmp_path / "file", []
    path.write_text("before")

    def sync(descriptor):
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        done.append((name, path.read_text()))

    with mock.patch("os.fsync", sync):
        write(path, "after")
    assert done == [("file", "before"), (tmp_path.name, "after")]
    assert path.read_text() == "after" and list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_folder(tmp_path):
    def fill():
        with written_whole(tmp_path / "folder") as unfinished:
            (unfinished / "below").mkdir(parents=True)
            (unfinished / "below" / "file").write_text("it")

    fill()
    assert content(tmp_path).keys() == {"folder", "folder/below", "folder/below/file"}
    with pytest.raises(OSError, match="not empty"):
        fill()  # a folder with files in it is not replaced
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("error", [OSError(28, "No space"), KeyboardInterrupt(), MemoryError()])
def test_an_error_leaves_what_was_there(error, tmp_path):
    (tmp_path / "file").write_text("before")
    before = content(tmp_path)
    with pytest.raises(type(error)) as raised, written_whole(tmp_path / "file") as unfinished:
        unfinished.write_text("half")
        raise error
    assert content(tmp_path) == before
    if isinstance(error, OSError):
        assert str(tmp_path / "file") in str(raised.value)


def test_an_error_names_the_path_and_not_what_is_unfinished(tmp_path):
    (tmp_path / "folder" / "file").mkdir(parents=True)
    for path, error in (
        (tmp_path / "none" / "file", FileNotFoundError),
        (tmp_path / "folder", IsADirectoryError),
    ):
        with pytest.raises(error) as caught:
            write(path, "after")
        assert (caught.value.filename, caught.value.filename2) == (str(path), None)


def test_a_link_stays_and_a_device_is_written(tmp_path):
    (tmp_path / "file").write_text("before")
    (tmp_path / "link").symlink_to("file")
    write(tmp_path / "link", "after")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "after"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write(tmp_path / "pipe", "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)


def test_what_a_killed_process_left_goes_and_what_another_one_writes_stays(tmp_path):
    held = (
        "import sys, time\n"
        "from tfx_largeout.written_whole import written_whole\n"
        "with written_whole(sys.argv[1]) as unfinished:\n"
        "    unfinished.write_text('half')\n"
        "    print(unfinished, flush=True)\n"
        "    time.sleep(600)\n"
    )
    code = "import sys, types; sys.modules['tfx_largeout'] = p = types.ModuleType('tfx_largeout')\n"
    code += f"p.__path__ = [{str(Path(module.__file__).parent)!r}]\n" + held  # without TensorFlow
    path = tmp_path / "x.keras"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        unfinished = Path(child.stdout.readline().strip())
        mine = tmp_path / "unfinished.x.keras.of-mine"
        mine.mkdir()
        write(path, "first")
        assert unfinished.read_text() == "half"  # its process is still there
        child.kill()
    write(tmp_path / "other", "of another name")
    assert unfinished.exists()
    write(path, "second")
    assert not unfinished.parent.exists() and path.read_text() == "second"
    assert {found.name for found in tmp_path.iterdir()} == {"x.keras", "other", mine.name}


# Its users


def model():
    keras.utils.set_random_seed(1)
    head = tlo.heads.SampledHead(CLASSES, tlo.samplers.Uniform(3), tlo.optimizers.RowSGD(0.1))
    made = keras.Sequential([keras.Input([4]), keras.layers.Dense(32), head])
    made.compile("adam", tlo.losses.ComplementarySum())
    return made


def trainer(folder):
    small = keras.Sequential([keras.Input([40]), keras.layers.Dense(500)])
    small.compile(loss="mse")
    made = tlo.hessian_free.Trainer()
    x = np.ones((8, 40), "float32")
    made.fit(small, x, np.ones((8, 500), "float32"), epochs=1)
    return lambda: made.save_state(folder / "state.npz")


def predictions(name):
    scores, ids = np.random.default_rng(0).random([9000, 4]), np.tile(np.arange(4), (9000, 1))
    return lambda folder: lambda: write_predictions(folder / name, scores, ids, 5)


def cache(folder):
    source = folder.parent / "data.txt"
    lines = (f"{i % 7} {i % 50}:1 {50 + i % 50}:0.{1 + i % 9}" for i in range(9000))
    source.write_text("\n".join(["9000 100 7", *lines]) + "\n")
    (folder / "cache").mkdir()
    return lambda: read_xc(source, cache=folder / "cache")


def report(folder):
    configuration = {"long": ""}
    made = Comparison("data", OutputFolder(str(folder / "run")), configuration)
    made.files.make()
    made.write()
    configuration["long"] = "x" * 250_000
    return made.write


def trials(folder):
    class Trial:
        def row(self):
            return {"name": "x" * 250_000}

    chosen = ChosenSettings({}, None, [Trial()])
    return lambda: chosen.to_csv(folder / "trials.csv")


WRITERS = {
    "keras": lambda folder: (lambda m: lambda: tlo.save_model(m, folder / "x.keras"))(model()),
    "h5": lambda folder: (lambda m: lambda: tlo.save_model(m, folder / "x.weights.h5"))(model()),
    "export": lambda folder: (lambda m: lambda: tlo.export(m, folder / "new" / "1"))(model()),
    "names": lambda folder: (
        lambda m: (
            lambda: tlo.export(
                m, folder / "1", rows="int8", names=[f"{c:0100d}" for c in range(CLASSES)]
            )
        )
    )(model()),
    "state": trainer,
    "predictions": predictions("p.npz"),
    "text": predictions("p.txt"),
    "packed": predictions("p.txt.gz"),
    "cache": cache,
    "report": report,
    "trials": trials,
}


@pytest.fixture
def disk(tmp_path):
    """A half-full disk of 160 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {mounted.stderr.strip()}")
    (folder / "other").write_bytes(os.urandom(80_000))
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # some of it may be mapped


VARIANTS = ("names", "text", "packed")  # of the export and the predictions


@pytest.mark.all_cases
@pytest.mark.parametrize("kind", [*(k for k in WRITERS if k not in VARIANTS), *thorough(*VARIANTS)])
def test_a_full_disk(kind, disk):
    run = WRITERS[kind](disk)
    before = content(disk)
    for _ in range(2):
        with pytest.raises(OSError) as raised:
            run()
        assert raised.value.errno == errno.ENOSPC
        assert str(disk) in str(raised.value)  # it names the file
        assert content(disk) == before
    subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
    run()
    assert content(disk) != before


@pytest.mark.parametrize("kind", ["keras", "h5", "state", "predictions", "report", "trials"])
def test_an_earlier_file_survives_a_full_disk(kind, disk):
    subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
    run = WRITERS[kind](disk)
    run()
    before = content(disk)
    left = os.statvfs(disk)
    (disk / "filling").write_bytes(bytes(left.f_bavail * left.f_frsize - 40_000))
    with pytest.raises(OSError, match="No space left"):
        run()
    (disk / "filling").unlink()
    assert content(disk) == before
    time.sleep(0.01)
    run()
