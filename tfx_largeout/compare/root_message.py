# SPDX-License-Identifier: Apache-2.0
"""root_message: the sentence that matters in the message of an error."""

from __future__ import annotations

import re

# Additions of TensorFlow and Keras: escape codes, names of nodes, of ops and of error kinds.
_DECORATION = re.compile(
    r"\x1b\[[0-9;]*m"
    r"|\{\{.*?\}\}"
    r"|\[Op:[^\]]*\]( name:.*)?"
    r"|^\s*\(\d+\) [A-Z_]+:"
)
# Lines before it: the position of the error in a graph.
_PREFACE = re.compile(
    r"Graph execution error:"
    r"|Detected at node "
    r"|\s+File \""
    r"|<stack traces unavailable>"
    r"|\d+ root error\(s\) found"
    r"|Exception encountered when calling "
)
_MAX_LENGTH = 300


def root_message(text: str) -> str:
    """Returns the first line with the actual error, of at most 300 characters.

    Args:
        text: The whole message. TensorFlow puts the stack of a graph's node before the sentence,
            and names of nodes and ops around it; Keras the name of the layer.

    Returns:
        The line, or `no message`.
    """
    lines = (line for line in text.splitlines() if not _PREFACE.match(line))
    cleaned = (_DECORATION.sub("", line).strip() for line in lines)
    line = next(filter(None, cleaned), "no message")
    return line if len(line) <= _MAX_LENGTH else line[: _MAX_LENGTH - 3] + "..."
