# SPDX-License-Identifier: Apache-2.0
"""Checks the English of pages, docstrings and comments: short, plain, the field's terms.

    python docs/prose.py         # all pages and source files; exit code 1 if something is found
    python docs/prose.py docs/guides/gpu.md

By proselint, with two of its own checks and the rules below. Code and generated tables are left
out. For a notebook, lines are numbered in its texts joined together.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tokenize
from pathlib import Path

from proselint.checks import lexical_illusions, redundancy
from proselint.config import Config
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check
from proselint.registry.checks.types import PreferredForms
from proselint.tools import LintFile

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**/*.md", "docs/notebooks/*.ipynb")
SOURCES = tuple(
    f"{folder}/**/*.py" for folder in ("tfx_largeout", "examples", "benchmarks", "tests")
)

_COUNTED = (
    r"(?:ms|seconds?|bytes?|numbers?|values?|labels?|times|candidates|MiB|GB|rows?|requests?"
    r"|lines?|classes|examples)"
)
_PER = r"(?:step|example|class|worker|second|user|epoch|row|request|batch|table|position|line)"

# What must not be written, as a regular expression, and what to write instead.
RULES = {
    r"(?:example|head|worker|user|place|word|query)'s own": "per example, separate",
    r"of (?:its|their|his|your|one's|our) own": "its own ..., separate",
    r"one's own": "your own",
    r"level with": "within noise of",
    r"pays?(?: off)?": "helps, is faster",
    r"refus(?:e|es|ed|al|als|ing)": "raises ValueError",
    r"lies? below": "hidden layers",
    _COUNTED + r" an? " + _PER: "X per Y",
    r"(?:that|those) of": "repeat the noun",
    r"those (?:which|that)": "repeat the noun",
    r"(?:that|those) in": "repeat the noun",
    r"(?:the )?ones? (?:that|which)": "repeat the noun",
    r"of (?:which|whom|whose)": "two sentences",
    r"as dear as|dear(?:er)?": "costs as much as, costly",
    r"mind (?:that|the|this|these|two|three|what)": "note",
    r"would keep": "name the recipe",
    r"in the place of": "instead of",
    r"told to": "passed to, logged for",
    r"machine's mood": "load",
    r"go(?:es)? by": "depends on, follows",
    r"but for": "except for",
    r"mend(?:s|ed)?": "fix",
    r"and (?:its|their) kin": "and similar names",
    r"without a word": "silently",
    r"(?:be|been) had": "be available",
    r"next to nothing": "almost nothing",
    r"(?:he|him|his)": "you, they",
    r"whoever": "who",
    r"is no (?:function|part|multiple)": "is not a",
    r"bit by bit": "bitwise",
    r"anew": "again",
    r"so many (?:[a-z]+s|of)": "n, the given number",
    r"be (?:it|they)": "is, are",
    r"takes? for granted": "assumes",
    r"(?:reckon(?:s|ed)?|kin|thereby|hence)": "a plain word",
    r"(?:nobody|somebody)": "no worker, a user",
    r"in a circle": "in a ring, modulo",
}
_NAME = re.compile(r"^\s*[\w*]+(?=: )|^\s+")  # of an argument or an attribute; else indentation
_BEFORE_DOCSTRING = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
_NOT_PROSE = re.compile(
    r"^( *)```.*?^\1```|<!--(?:table|pivot)=.*?<!--/(?:table|pivot)-->|<!--.*?-->"
    r"|^ {4,}.*?$|`[^`\n]+`|\]\([^)]*\)|^#.*?$",
    re.MULTILINE | re.DOTALL,
)


def text_of(page: Path) -> str:
    """Returns a page's text: a notebook's Markdown, a source file's docstrings and comments."""
    text = page.read_text()
    if page.suffix == ".py":
        return _docstrings_and_comments(text)
    if page.suffix != ".ipynb":
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def _docstrings_and_comments(source: str) -> str:
    """Returns the text that has docstrings and comments in their lines, and no code."""
    lines = [""] * (source.count("\n") + 1)
    last = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        at = token.start[0] - 1
        if token.type == tokenize.COMMENT:
            alone = token.line.lstrip().startswith("#")
            lines[at] = ("" if alone else "· ") + token.string.lstrip("#! ")
        elif token.type == tokenize.STRING and last in _BEFORE_DOCSTRING:
            rows = token.string.strip('r"').split("\n")
            lines[at : at + len(rows)] = (_NAME.sub("", row) for row in rows)
            lines[at] = "· " + lines[at]
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            last = token.type
    # Code and formulas may repeat a word.
    return re.sub(r"\b(\w+)(?=\s+\1\b)", "·", "\n".join(lines), flags=re.IGNORECASE)


def found_in(page: str) -> list[tuple[int, str]]:
    """Returns line and message of what a page must not say."""
    text = _NOT_PROSE.sub(lambda match: re.sub(r"[^\n]", "·", match[0]), page)
    own = {check.path: True for check in _registered()}
    results = LintFile("page", text).lint(Config(max_errors=10**6, checks=own))
    return [(result.pos[0], result.check_result.message) for result in results]


def _registered() -> list[Check]:
    """Returns the checks of this file, which are registered at the first call."""
    registry = CheckRegistry()
    if not registry.checks:
        rules = {rule.replace(" ", r"\s+"): better for rule, better in RULES.items()}
        ours = Check(PreferredForms(rules), path="ours", message="write {0!r}, not {1!r}")
        others = (*lexical_illusions.__register__, *redundancy.__register__)
        registry.register_many((ours, *others))
    return registry.checks


def main() -> int:
    """Prints what is found in the files that are named, or in all."""
    named = [Path(name).resolve() for name in sys.argv[1:]]
    found = 0
    for page in named or [page for each in (*PAGES, *SOURCES) for page in sorted(ROOT.glob(each))]:
        for line, message in found_in(text_of(page)):
            print(f"{page.relative_to(ROOT)}:{line}: {message}")
            found += 1
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
