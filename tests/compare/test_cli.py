# SPDX-License-Identifier: Apache-2.0
"""Arguments: everything that ends before a head is trained."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tfx_largeout
from tfx_largeout.compare.cli import main
from tfx_largeout.compare.head_table import HEAD_TABLE


def test_list_shows_each_head_with_its_defaults(capsys):
    assert main(["compare", "--list"]) == 0
    listed = capsys.readouterr().out
    for row in HEAD_TABLE:
        assert row.name in listed and row.description in listed
        assert f"--learning-rate {row.default_options['learning_rate']}" in listed


def test_help_and_version(capsys):
    assert main(["compare", "--help"]) == 0
    assert "--budget SECONDS" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tfx-largeout ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--heads", "lsh"], "--heads: must be one of full_softmax, .*; got 'lsh'"),
        (["--heads", "tf_nce,tf_nce"], "--heads: must name each head once; got 'tf_nce,tf_nce'"),
        (["--budget", "0"], "--budget: must be a number above 0; got '0'"),
        (["--epochs", "x"], "--epochs: must be a number above 0; got 'x'"),
        (["--epochs", "1", "--budget", "1"], "--budget: not allowed with argument --epochs"),
        (["--batch-size", "0"], "--batch-size: must be an integer of at least 1; got '0'"),
        (["--hidden", "1.5"], "--hidden: must be an integer of at least 1; got '1.5'"),
        (["--seed", "-1"], r"--seed: must be an integer in \[0, 2147483648\); got '-1'"),
        (["--features", "raw"], "--features: invalid choice: 'raw'"),
        (["--data", "nowhere"], "--data must be wordnet/hyper .* or a folder; got 'nowhere'"),
        (["--train", "a.txt"], "--train and --test must be given together; got --train alone"),
        (["--train", "a", "--test", "b"], "--train must be a file that can be read; got 'a'"),
        (["--learning-rate", "tf_nce=-1"], "--learning-rate must be a number above 0; got '-1'"),
        (["--learning-rate", "lsh=1"], "--learning-rate must be for a chosen head .*'lsh=1'"),
        (["--heads", "full_softmax", "--num-sampled", "9"], "--num-sampled must be an option of"),
        (["--output", __file__], "--output must be a folder; got the file"),
        (["--output", str(Path(__file__).parent)], "--output must be a new or an empty folder"),
        (["--bud", "3"], "unrecognized arguments: --bud 3"),
        (["extra"], "unrecognized arguments: extra"),
    ],
)
def test_a_bad_argument_gives_one_sentence(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert printed.startswith("tfx-largeout")
    assert re.search(message, printed), printed
    assert list(tmp_path.iterdir()) == []


def test_a_command_is_needed(capsys):
    assert main([]) == 2
    assert "COMMAND" in capsys.readouterr().err


def test_arguments_are_read_without_tensorflow():
    program = f"""
import sys, types
package = types.ModuleType("tfx_largeout")  # stands in for the package, which may load TensorFlow
package.__path__ = [{str(Path(tfx_largeout.__file__).parent)!r}]
sys.modules["tfx_largeout"] = package
from tfx_largeout.compare.cli import main
assert main(["compare", "--list"]) == 0
print([name for name in ("tensorflow", "keras", "numpy", "matplotlib") if name in sys.modules])
"""
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert printed.endswith("[]\n")
