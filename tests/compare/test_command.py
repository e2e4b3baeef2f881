# SPDX-License-Identifier: Apache-2.0
"""The command, in a process that does not set TensorFlow's log level."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from child import start_child

COMMAND = Path(__file__).parents[2] / "tfx_largeout_command.py"
# Not as a script, which would make Python import the source tree instead of the installed package.
PROGRAM = f"import runpy; runpy.run_path({str(COMMAND)!r}, run_name='__main__')"


def run(folder, *arguments, program=PROGRAM):
    kept = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    child = start_child(folder, "-c", program, *arguments, env=kept)
    output, errors = child.communicate()
    return child.returncode, output, errors


def test_tensorflow_starts_without_a_word(tmp_path):
    code, output, errors = run(tmp_path, "compare", "--list")
    assert (code, errors) == (0, "")
    assert "complementary_sum" in output


@pytest.mark.thorough
def test_errors_of_the_command_are_shown(tmp_path):
    code, _, errors = run(tmp_path, "compare", "--budget", "0")
    assert code == 2
    assert errors == "tfx-largeout compare: --budget: must be a number above 0; got '0'\n"


# Prints a message while the package is imported, which then fails.
BROKEN = """
import os, sys
class Finder:
    def find_spec(name, *_):
        if name == "keras":
            os.write(2, b"a reason\\n")
            raise ImportError("no keras")
sys.meta_path.insert(0, Finder)
"""


def test_an_import_that_fails_shows_what_was_held_back(tmp_path):
    code, _, errors = run(tmp_path, "compare", "--list", program=BROKEN + PROGRAM)
    assert code == 1
    assert errors.startswith("a reason\n") and "ImportError: no keras" in errors


@pytest.mark.thorough
def test_scripts_of_launch_see_the_environment_as_it_is(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os; print(os.environ.get('TF_CPP_MIN_LOG_LEVEL'))")
    code, output, _ = run(tmp_path, "launch", "--workers", "1", str(script))
    assert code == 0
    assert output.strip().endswith("None")
