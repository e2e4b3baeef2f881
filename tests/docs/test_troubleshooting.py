# SPDX-License-Identifier: Apache-2.0
"""The messages in docs/troubleshooting.md match the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
MESSAGES = re.findall(r"^\*\*`(.+?)`\*\*", PAGE.read_text(), re.MULTILINE)


def texts_of(path):
    """Yields the texts in a file; a value that is put in is a line break."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "\n" for part in node.values]
            yield "".join(parts)
        elif isinstance(node, ast.List):  # the message of a check in a graph
            parts = [getattr(each, "value", "\n") for each in node.elts]
            yield " ".join(each if isinstance(each, str) else "\n" for each in parts)


@pytest.fixture(scope="module")
def texts():
    return [text for path in (ROOT / "tfx_largeout").glob("**/*.py") for text in texts_of(path)]


def test_there_are_messages():
    assert len(MESSAGES) > 20
    assert len(set(MESSAGES)) == len(MESSAGES)


@pytest.mark.all_cases
@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_one_of_the_code(message, texts):
    parts = [re.escape(part.strip()) for part in message.split("...") if part.strip()]
    pattern = re.compile(".*?".join(parts), re.DOTALL)
    assert any(pattern.search(text) for text in texts)
