# SPDX-License-Identifier: Apache-2.0
"""Tutorials, guides and extras run from the first block to the last, and print what they show.

A line `print(...)  # text` must print this text; after `# about` numbers may differ by a tenth.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from variants import thorough

from tfx_largeout.compare.cli import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
KINDS = ("guides", "tutorials", "extras")
PAGES = sorted(page for kind in KINDS for page in (DOCS / kind).glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PEER = re.compile(r'^```python title="([^"]*)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
COMING_FROM = (DOCS / "guides" / "coming_from.md").read_text()
PEERS = dict(PEER.findall(COMING_FROM))
COMMENT = re.compile(r"\)  +# (.*)$")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def run(page, folder, monkeypatch):
    """Runs a page's blocks in a folder; returns the expected and the printed output per line."""
    monkeypatch.chdir(folder)
    printed = {}

    def note(*values):
        frame = sys._getframe(1)
        text = " ".join(map(str, values))
        printed.setdefault((frame.f_code.co_filename, frame.f_lineno), []).append(text)

    names = {"print": note, "__name__": "__main__"}
    said = {}
    for number, code in enumerate(BLOCK.findall(page.read_text())):
        file = f"{page.name}-{number}"
        for line, text in enumerate(code.splitlines(), start=1):
            if "print(" in text and (comment := COMMENT.search(text)):
                said[file, line] = comment[1]
        exec(compile(code, file, "exec"), names)
    return {at: (text, ", ".join(printed[at])) for at, text in said.items()}


def alike(said, printed):
    if not said.startswith("about "):
        return said == printed
    numbers = [np.array(NUMBER.findall(text), float) for text in (said, printed)]
    words = [NUMBER.sub("", text).split() for text in (said.removeprefix("about "), printed)]
    return words[0] == words[1] and np.allclose(*numbers, rtol=0.1, atol=0.02)


MEMORY = DOCS / "guides" / "memory.md"  # the cheapest page


@pytest.mark.parametrize(
    "page",
    [MEMORY, *thorough(*(page for page in PAGES if page != MEMORY))],
    ids=lambda page: page.stem,
)
def test_a_page_prints_what_it_says(page, tmp_path, monkeypatch):
    for at, (said, printed) in run(page, tmp_path, monkeypatch).items():
        assert alike(said, printed), f"{at}: it says {said!r}, and prints {printed!r}"


def imported(code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


INSTALLED = {"tfx_largeout", "keras", "numpy", "tensorflow", *sys.stdlib_module_names}


@pytest.mark.all_cases
@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_a_page_says_what_to_install_beside_the_package(page):
    text = page.read_text()
    modules = {each.partition(".")[0] for code in BLOCK.findall(text) for each in imported(code)}
    missing = [each for each in modules - INSTALLED if f"pip install {each}" not in text]
    assert not missing


@pytest.mark.thorough
@pytest.mark.parametrize("title", PEERS)
def test_a_peer_runs(title, tmp_path, monkeypatch):
    """Blocks that use another library, if it is installed."""
    monkeypatch.chdir(tmp_path)
    for module in imported(PEERS[title]):
        pytest.importorskip(module, exc_type=ImportError)
    names = {}
    for block in BLOCK.findall(COMING_FROM):
        if block.startswith("import"):  # the data
            exec(block, names)
    exec(PEERS[title], names)


@pytest.mark.parametrize(
    ("said", "printed", "expected"),
    [
        ("[1 2]", "[1 2]", True),
        ("0.5", "0.51", False),
        ("about 0.50", "0.51", True),
        ("about 5 of 7", "6 of 7", False),
        ("about 5 of 7", "5 in 7", False),
    ],
)
def test_what_counts_as_alike(said, printed, expected):
    assert alike(said, printed) == expected


def commands(page):
    for block in SHELL.findall(page.read_text()):
        for command in block.replace("\\\n", " ").splitlines():
            yield command.partition("#")[0].split()


def test_commands_have_the_options_that_pages_name(capsys):
    """Options of `tfx-largeout` and of the examples; runs each command's `--help` once."""
    named = {}
    for page in (ROOT / "README.md", *DOCS.glob("**/*.md")):
        for words in commands(page):
            is_script = words[:1] == ["python"] and words[1:2] and words[1].endswith(".py")
            if words[:1] == ["tfx-largeout"] or is_script:
                options = {word.partition("=")[0] for word in words if word.startswith("--")}
                named.setdefault(words[1], set()).update(options)
    for program, options in named.items():
        if program.endswith(".py"):
            assert (ROOT / program).is_file(), program
            text = (ROOT / program).read_text()
        else:
            main([program, "--help"])
            text = capsys.readouterr().out
        missing = [each for each in options - {"--help"} if each not in text]
        assert not missing, f"{program}: {missing}"
