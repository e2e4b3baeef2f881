# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: which small faults do the tests of a part of the package miss?

    python tests/mutation/run.py losses --number 60 --seed 0
    python tests/mutation/run.py core --number 60 --limit 10     # ten more, and stop
    python tests/mutation/run.py losses --again survived --tests tests/losses/test_new.py
    python tests/mutation/run.py --report

A mutant is a copy of the package with one fault (`mutants.py`). It is killed if one of the tests of
its file fails, or does not end in time. The tests of a file are in the folders of its part; tests
that use a name defined in the file come first. The order is: quick cases, then the other cases of
test files that use such a name, then (not with `--quick`) quick cases of other test files that do.
Each row is written to a CSV at once: a stopped run continues where it was; `--again survived` tries
the survivors again, with `--tests` by these alone (and the C++ tests). Mutants in `equivalent.csv`
behave like the original, and are not run.

It needs `pip install -e '.[mutation]'`, a built library, and for `core` cmake and ninja. Tests run
one after the other, in children of a process that has imported TensorFlow.
"""

from __future__ import annotations

import argparse
import csv
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

from mutants import PARTS, ROOT, Mutant, sample

RESULTS = ROOT / "benchmarks" / "results" / "mutation.csv"
EQUIVALENT = Path(__file__).parent / "equivalent.csv"
FIELDS = (*Mutant._fields, "status", "killed_by", "seconds")
FOLDERS = {"heads": ("heads", "conformance", "misuse")}  # of tests, if not named like the part
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
    parser.add_argument("--tests", nargs="+", default=[], help="files or cases of pytest, alone")
    parser.add_argument("--report", action="store_true", help="only say what the CSV holds")
    arguments = parser.parse_args()
    if arguments.tests and not arguments.again:
        parser.error("--tests must go with --again")
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
        self._quick = arguments.quick
        os.environ["PYTHONPATH"] = str(self._root)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a mutant may have its original's size and age
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(self._root))
        import keras  # noqa: F401
        import pytest  # noqa: F401
        import tensorflow  # noqa: F401

        start = time.monotonic()
        status, by = self._run(self._tests, 3600)
        if status != "survived":
            raise SystemExit(f"the tests must pass without a fault; got {status} by {by}")
        self._limit = 60 + 5 * (time.monotonic() - start)

    def try_mutant(self, mutant: Mutant) -> tuple[str, str]:
        file = self._root / mutant.file
        code = file.read_text()
        file.write_text(mutant.apply(code))
        try:
            if self._given:
                return self._run(self._given, self._limit)
            named, others, elsewhere = self._by_names(code)
            runs = [([*named, *others], self._limit)]
            if not self._quick:
                runs.append((["--thorough", "-m", "thorough", *(named or others)], _LONG))
                runs += [(elsewhere, _LONG)] * bool(elsewhere)
            for tests, limit in runs:
                status, by = self._run(tests, limit)
                if status != "survived":
                    break
            return status, by
        finally:
            file.write_text(code)

    def _by_names(self, code: str) -> tuple[list[str], list[str], list[str]]:
        """Returns the test files of the part that name what the file defines, most often first,
        the part's others, and those elsewhere that name it.
        """
        names = re.findall(r"^(?:class|def) (\w+)", code, re.MULTILINE)
        pattern = re.compile(rf"\b(?:{'|'.join(names)})\b")
        files = [
            file
            for path in map(self._root.joinpath, self._tests)
            for file in ([path] if path.is_file() else sorted(path.glob("test_*.py")))
        ]
        rest = sorted({*self._root.glob("tests/**/test_*.py")} - {*files})
        count = {file: len(pattern.findall(file.read_text())) for file in [*files, *rest]}
        of_part = sorted(files, key=lambda file: -count[file])
        return (
            [str(file.relative_to(self._root)) for file in of_part if count[file]],
            [str(file.relative_to(self._root)) for file in of_part if not count[file]],
            [str(file.relative_to(self._root)) for file in rest if count[file]],
        )

    def _run(self, tests: list[str], limit: float) -> tuple[str, str]:
        log = self._root / "log.txt"
        child = os.fork()
        if not child:
            os.setsid()
            os.chdir(self._root)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            import pytest

            os._exit(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]))
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
