# SPDX-License-Identifier: Apache-2.0
"""tfx-largeout launch."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time

import pytest

from tfx_largeout.compare.cli import main
from tfx_largeout.distribute.launcher import worker_environments

# Without TensorFlow, so that it starts at once.
SAYS = """
import json, os, sys
config = json.loads(os.environ["TF_CONFIG"])
print("worker", config["task"]["index"], "of", len(config["cluster"]["worker"]), *sys.argv[1:])
print("last line without an end", end="")
"""
DIES = """
import json, os, sys, time
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    sys.exit(5)
time.sleep(100)
"""
STAYS = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
open(sys.argv[1] + "/" + str(os.getpid()), "w").close()
time.sleep(100)
"""


@pytest.fixture
def short_grace(monkeypatch):
    monkeypatch.setattr("tfx_largeout.distribute.launcher._GRACE", 0.2)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def program(folder, text):
    (folder / "program.py").write_text(text)
    return str(folder / "program.py")


def test_each_line_has_the_number_of_its_worker(tmp_path, capsys):
    assert main(["launch", "--workers", "3", program(tmp_path, SAYS), "--x", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = [f"[{rank}] worker {rank} of 3 --x 1" for rank in range(3)]
    said += [f"[{rank}] last line without an end" for rank in range(3)]
    assert sorted(lines) == sorted(said)


SAYS_MUCH = """
import signal, sys
signal.alarm(60)
for _ in range(3000):
    print("x" * 80)
open(sys.argv[1], "w").close()
"""


class BrokenPipe(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def test_workers_go_on_when_nobody_reads(tmp_path, monkeypatch):
    """A pipe holds less than their output."""
    monkeypatch.setattr(sys, "stdout", BrokenPipe())
    end = tmp_path / "end"
    assert main(["launch", "--workers", "1", program(tmp_path, SAYS_MUCH), str(end)]) == 0
    assert end.exists()


def test_a_stream_of_another_encoding_gets_all_lines(tmp_path, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    script = program(tmp_path, "print(chr(233)); print('last')")
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8")
    assert main(["launch", "--workers", "1", script]) == 0
    assert stream.buffer.getvalue().endswith(b"[0] last\n")


def test_a_script_gets_all_that_stands_behind_it(tmp_path, capsys):
    command = [program(tmp_path, SAYS), "--", "--workers", "--", "2"]
    assert main(["launch", "--workers", "1", *command]) == 0
    assert "[0] worker 0 of 1 -- --workers -- 2\n" in capsys.readouterr().out


def test_if_one_fails_all_end(tmp_path, capsys, short_grace):
    start = time.monotonic()
    assert main(["launch", "--workers", "2", program(tmp_path, DIES)]) == 5
    assert time.monotonic() - start < 30
    assert "worker 1 ended with 5" in capsys.readouterr().err


@pytest.fixture
def heeds_ctrl_c():
    """A process that a shell has started in the background begins without this handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def send_when_both_run(number, workers):
    """Sends this process a signal when two workers have put a file each into a new folder."""
    workers.mkdir()

    def send():
        while len(list(workers.iterdir())) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=send).start()


def test_ctrl_c_ends_all(tmp_path, short_grace, heeds_ctrl_c):
    workers = tmp_path / "workers"
    send_when_both_run(signal.SIGINT, workers)
    assert main(["launch", "--workers", "2", program(tmp_path, STAYS), str(workers)]) == 130
    assert not any(is_running(int(path.name)) for path in workers.iterdir())


def test_sigterm_ends_all(tmp_path, short_grace):
    workers = tmp_path / "workers"
    before = signal.getsignal(signal.SIGTERM)
    send_when_both_run(signal.SIGTERM, workers)
    assert main(["launch", "--workers", "2", program(tmp_path, STAYS), str(workers)]) == 143
    assert not any(is_running(int(path.name)) for path in workers.iterdir())
    assert signal.getsignal(signal.SIGTERM) == before


# Notes its ports; worker 1 kills itself with signal 9 in all but the last start.
FAILS = """
import json, os, pathlib, signal, sys, time
config = json.loads(os.environ["TF_CONFIG"])
folder, failures = pathlib.Path(sys.argv[1]), int(sys.argv[2])
if config["task"]["index"] == 1:
    start = len(list(folder.iterdir()))
    (folder / str(start)).write_text(str(config["cluster"]["worker"]))
    if start < failures:
        os.kill(os.getpid(), signal.SIGKILL)
else:
    time.sleep(0.5)
"""


SAYS_GPU = """
import os
print(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH"))
"""
LISTS = "#!/bin/sh\necho 'GPU 0: A (UUID: GPU-1)'\necho '  MIG 1g'\necho 'GPU 1: B (UUID: GPU-2)'\n"


@pytest.mark.parametrize(
    ("visible", "workers", "expected"),
    [
        (None, 2, ["0 None", "1 None"]),
        (None, 3, ["0 true", "1 true", "0 true"]),
        ("2, GPU-5,-2,7", 2, ["2 None", "GPU-5 None"]),
        ("3", 2, ["3 true", "3 true"]),
        ("", 1, [" None"]),
        ("-1", 2, ["-1 None", "-1 None"]),
    ],
)
def test_each_worker_has_a_gpu(visible, workers, expected, tmp_path, monkeypatch, capsys):
    lister = tmp_path / "nvidia-smi"
    lister.write_text(LISTS)
    lister.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert main(["launch", "--workers", str(workers), program(tmp_path, SAYS_GPU)]) == 0
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines == [f"[{rank}] {said}" for rank, said in enumerate(expected)]


@pytest.mark.parametrize("lister", ["#!/bin/sh\necho GPU 0\nexit 9\n", "no program"])
def test_gpus_that_cannot_be_listed(lister, tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text(lister)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (environment,) = worker_environments(["127.0.0.1:1"])
    assert "CUDA_VISIBLE_DEVICES" not in environment


@pytest.mark.parametrize(("failures", "restarts", "code"), [(2, 3, 0), (2, 1, 137), (1, 0, 137)])
def test_all_start_again(failures, restarts, code, tmp_path, capsys, short_grace):
    starts = tmp_path / "starts"
    starts.mkdir()
    arguments = [program(tmp_path, FAILS), str(starts), str(failures)]
    options = ["--restarts", str(restarts)] if restarts else []
    assert main(["launch", "--workers", "2", *options, *arguments]) == code
    ports = [path.read_text() for path in starts.iterdir()]
    expected = min(failures, restarts) + 1
    assert len(ports) == expected and len(set(ports)) == expected
    said = capsys.readouterr().err
    assert said.count("worker 1 was ended by signal 9 (SIGKILL)") == min(failures, restarts + 1)
    for restart in range(1, expected):
        assert f"starting all workers again, {restart} of {restarts}" in said


def test_ctrl_c_starts_nothing_again(tmp_path, short_grace, heeds_ctrl_c):
    workers = tmp_path / "workers"
    send_when_both_run(signal.SIGINT, workers)
    arguments = ["--workers", "2", "--restarts", "5", program(tmp_path, STAYS), str(workers)]
    assert main(["launch", *arguments]) == 130
    assert len(list(workers.iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "2", "--restarts", "-1", "x.py"], "--restarts: must be an integer of at"),
        (["--workers", "2", "--restarts", "1.5", "x.py"], "at least 0; got '1.5'"),
        (["--workers", "0", "x.py"], "--workers: must be an integer of at least 1; got '0'"),
        (["x.py"], "the following arguments are required: --workers"),
        (["--workers", "2"], "the following arguments are required: SCRIPT"),
        (["--workers", "2", "nowhere.py"], "nowhere.py"),
    ],
)
def test_wrong_arguments(arguments, message, capfd, short_grace):
    assert main(["launch", *arguments]) == 2
    output = capfd.readouterr()
    assert message in output.err + output.out
