# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: which small faults do the tests of a part of the package miss?

    python tests/mutation/run.py losses --number 60 --seed 0
    python tests/mutation/run.py core --number 60 --limit 10     # ten more, and stop
    python tests/mutation/run.py heads --again survived --only over_workers --tests tests/distribute
    python tests/mutation/run.py --report

A mutant is a copy of the package with one fault (`mutants.py`). It is killed if a test of its part
fails, or does not end in time. The part's folders have the tests; first they run without a fault,
while coverage.py records which lines each case runs. A Python mutant meets the quick cases that run
its statement, from the shortest file on (all, where none does or only an import); then, without
`--quick`, the cases of the same files that take long.
Each row is written to a CSV at once: a stopped run continues where it was; `--again survived` tries
the survivors again, `--only` in some files; `--tests` takes these alone (and the C++ tests).
Mutants in `equivalent.csv` behave like the original, and are not run.

It needs `pip install -e '.[mutation]'`, a built library, and for `core` cmake and ninja. Tests run
one after the other, in children of a process that has imported TensorFlow.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from mutants import PARTS, ROOT, Mutant, sample

RESULTS = ROOT / "benchmarks" / "results" / "mutation.csv"
EQUIVALENT = Path(__file__).parent / "equivalent.csv"
FIELDS = (*Mutant._fields, "status", "killed_by", "seconds")
# Folders of tests, if not only the one named like the part.
FOLDERS = {"heads": ("heads", "conformance", "misuse", "placement")}
FOR_ALL = ("test_registered_names.py",)
_GOAL = 0.9
_LONG = 3600.0  # seconds for cases that take long


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--number", type=int, default=60, help="mutants of each part's sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=10**9, help="try so many, and stop")
    parser.add_argument("--quick", action="store_true", help="without cases that take long")
    parser.add_argument("--again", default="", help="try anew those of this status")
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--tests", nargs="+", default=[], help="files or cases of pytest, alone")
    parser.add_argument("--report", action="store_true", help="only say what the CSV holds")
    arguments = parser.parse_args()
    if not arguments.report:
        for part in arguments.parts:
            run_part(part, arguments)
    report()


def run_part(part: str, arguments: argparse.Namespace) -> None:
    done = {row_key(row): row for row in rows_of(RESULTS)}
    skipped = {row_key(row) for row in rows_of(EQUIVALENT)}
    every = sample(part, arguments.seed)
    mutants = every[: arguments.number]
    if arguments.again:
        again = {key for key, row in done.items() if row["status"] == arguments.again}
        left = [mutant for mutant in every if mutant.key in again - skipped]
    else:
        left = [mutant for mutant in mutants if mutant.key not in skipped | done.keys()]
    left = [mutant for mutant in left if arguments.only in mutant.file]
    print(f"{part}: {len(mutants)} in the sample, {len(left)} to try", flush=True)
    if not left:
        return
    with tempfile.TemporaryDirectory() as folder:
        tester = (CoreTester if part == "core" else PythonTester)(Path(folder), part, arguments)
        for mutant in left[: arguments.limit]:
            start = time.monotonic()
            status, by = tester.try_mutant(mutant)
            seconds = round(time.monotonic() - start, 1)
            row = {**mutant._asdict(), "status": status, "killed_by": by, "seconds": seconds}
            replaced = {mutant.key, *skipped}
            others = [row for row in rows_of(RESULTS) if row_key(row) not in replaced]
            write(RESULTS, [*others, row])  # also of parts that another process tries
            print(f"{status:9} {seconds:6.1f} s  {mutant.file}:{mutant.line}  {by}", flush=True)


class PythonTester:
    """Runs the tests of a part on a copy of the package, in children of this process."""

    def __init__(self, folder: Path, part: str, arguments: argparse.Namespace) -> None:
        self._root = copy_package(folder)
        folders = (*FOLDERS.get(part, (part,)), *FOR_ALL)
        self._given = arguments.tests
        self._tests = self._given or [f"tests/{name}" for name in folders]
        self._quick = arguments.quick or self._given
        os.environ["PYTHONPATH"] = str(self._root)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a mutant may have its original's size and age
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(self._root))
        import coverage
        import keras  # noqa: F401
        import pytest  # noqa: F401
        import tensorflow  # noqa: F401

        files = [str(self._root / "tfx_largeout" / part / "*")]
        recorder = Recorder(coverage.Coverage(data_file=None, include=files), folder / "runs.json")
        status, by = self._run(self._tests, 3600, recorder)
        if status != "survived":
            raise SystemExit(f"the tests must pass without a fault; got {status} by {by}")
        self._runs = json.loads(recorder.file.read_text())
        print(f"{sum(self._runs['seconds'].values()):.0f} s without a fault", flush=True)

    def try_mutant(self, mutant: Mutant) -> tuple[str, str]:
        file = self._root / mutant.file
        code = file.read_text()
        cases = self._cases_of(str(file), code, mutant)
        files = list(dict.fromkeys(case.partition("::")[0] for case in cases))
        limit = 60 + 5 * sum(self._runs["seconds"][case] for case in cases)
        file.write_text(mutant.apply(code))
        try:
            status, by = self._run(self._given or files, limit, Chosen(cases))
            if status == "survived" and not self._quick:
                status, by = self._run(["--thorough", "-m", "thorough", *files], _LONG)
            return status, by
        finally:
            file.write_text(code)

    def _cases_of(self, file: str, code: str, mutant: Mutant) -> list[str]:
        """Returns the cases that run the changed statement, from the shortest file on."""
        seconds, ran = self._runs["seconds"], self._runs["lines"].get(file, {})
        spans = [
            (node.lineno, node.end_lineno or node.lineno)
            for node in ast.walk(ast.parse(code))
            if isinstance(node, ast.stmt)
        ]
        around = [span for span in spans if span[0] <= mutant.line <= span[1]]
        first, last = min(around, key=lambda span: span[1] - span[0])
        reached = {case for line in range(first, last + 1) for case in ran.get(str(line), [])}
        cases = [case for case in seconds if case in reached] or [*seconds]
        of_file: Counter[str] = Counter()
        for case in cases:
            of_file[case.partition("::")[0]] += seconds[case]
        return sorted(cases, key=lambda case: of_file[case.partition("::")[0]])

    def _run(self, tests: list[str], limit: float, *plugins: object) -> tuple[str, str]:
        log = self._root / "log.txt"
        child = os.fork()
        if not child:
            os.setsid()
            os.chdir(self._root)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            import pytest

            options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
            os._exit(pytest.main([*options, *tests], [*plugins]))
        end = time.monotonic() + limit
        while time.monotonic() < end:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                break
            time.sleep(0.05)
        else:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "killed", "time"
        code = os.waitstatus_to_exitcode(status)
        if code in (0, 5):  # 5: there are none
            return "survived", ""
        failed = re.search(
            r"^(?:FAILED|ERROR) (\S+)", log.read_text(errors="replace"), re.MULTILINE
        )
        return "killed", failed.group(1) if failed else f"exit code {code}"


class Recorder:
    """A plugin of pytest that writes each case's seconds, and which cases ran a line."""

    def __init__(self, coverage: Any, file: Path) -> None:
        self._coverage = coverage
        self._seconds: Counter[str] = Counter()
        self.file = file

    def pytest_sessionstart(self) -> None:
        self._coverage.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        lines = {file: data.contexts_by_lineno(file) for file in data.measured_files()}
        self.file.write_text(json.dumps({"seconds": self._seconds, "lines": lines}))


class Chosen:
    """A plugin of pytest that runs some cases, in their order."""

    def __init__(self, cases: list[str]) -> None:
        self._places = {case: place for place, case in enumerate(cases)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid in self._places]
        items.sort(key=lambda item: self._places[item.nodeid])


class CoreTester:
    """Builds the C++ core with a fault, and runs its C++ tests, then the Python tests of ops."""

    def __init__(self, folder: Path, part: str, arguments: argparse.Namespace) -> None:
        self._source, self._build = folder / "custom_ops", folder / "build"
        shutil.copytree(ROOT / "custom_ops", self._source)
        self._package = copy_package(folder)
        self._tests = arguments.tests or ["tests/ops"]
        configure = ["cmake", "-S", self._source, "-B", self._build, "-G", "Ninja"]
        library = f"-DTFX_OUTPUT_DIRECTORY={self._package / 'tfx_largeout' / 'ops'}"
        options = ["-DTFX_BUILD_TESTS=ON", "-DTFX_CUDA=off", library]
        subprocess.run([*configure, *options], check=True, stdout=subprocess.DEVNULL)
        self._make = ["cmake", "--build", self._build, "--target", "tfx_core_tests"]
        subprocess.run(self._make, check=True, stdout=subprocess.DEVNULL)
        start = time.monotonic()
        if self._test(3600) != ("survived", ""):
            raise SystemExit("the tests of the core must pass without a fault")
        self._limit = 60 + 5 * (time.monotonic() - start)

    def try_mutant(self, mutant: Mutant) -> tuple[str, str]:
        file = self._source.parent / mutant.file
        code = file.read_text()
        file.write_text(mutant.apply(code))
        try:
            built = subprocess.run(self._make, capture_output=True)
            if built.returncode != 0:
                return "invalid", "compiler"
            status, by = self._test(self._limit)
            return (status, by) if status == "killed" else self._test_ops()
        finally:
            file.write_text(code)

    def _test_ops(self) -> tuple[str, str]:
        make = ["cmake", "--build", self._build, "--target", "_tfx_largeout"]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            *self._tests,
        ]
        path = {"PYTHONPATH": str(self._package), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command, cwd=self._package, env={**os.environ, **path}, capture_output=True, text=True
        )
        if done.returncode == 0:
            return "survived", ""
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        return "killed", failed.group(1) if failed else f"exit code {done.returncode}"

    def _test(self, limit: float) -> tuple[str, str]:
        command = ["ctest", "--test-dir", self._build, "--stop-on-failure", "--timeout", str(limit)]
        done = subprocess.run(command, capture_output=True, text=True)
        failed = re.search(r"^\s+\d+ - (\S+) \(", done.stdout, re.MULTILINE)
        return ("killed", failed.group(1)) if failed else ("survived", "")


def copy_package(folder: Path) -> Path:
    """Copies the files that tests need; returns the new root."""
    for name in ("tfx_largeout", "tests", "examples", "docs", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "tfx_largeout_command.py", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def row_key(row: dict[str, str]) -> tuple[str, ...]:
    """As `Mutant.key`."""
    return row["file"], row["operator"], row["before"], row["after"]


def rows_of(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[dict[str, str]]) -> None:
    new = path.with_suffix(".new")
    with new.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (row["part"], row["file"], int(row["line"]))))
    new.replace(path)


def report() -> None:
    """Prints the share of those killed in each part, and who survived."""
    rows, equivalent = rows_of(RESULTS), rows_of(EQUIVALENT)
    alike = {row_key(row) for row in equivalent}
    for part in PARTS:
        of_part = [row for row in rows if row["part"] == part and row_key(row) not in alike]
        count = Counter(row["status"] for row in of_part)
        tried = count["killed"] + count["survived"]
        if not tried:
            continue
        share = count["killed"] / tried
        same = sum(row["file"].split("/")[-2] == part for row in equivalent)
        goal = "" if share >= _GOAL else f", below {_GOAL:.0%}"
        print(f"{part}: {count['killed']} of {tried} killed, {share:.0%}{goal}; {same} equivalent")
        for row in of_part:
            if row["status"] == "survived":
                print(f"  {row['file']}:{row['line']}: {row['before']}  ->  {row['after']}")


if __name__ == "__main__":
    main()
