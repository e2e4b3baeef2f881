# SPDX-License-Identifier: Apache-2.0
"""Parses a block of lines by NumPy, without a loop over lines; it knows what is wrong, not why."""

from __future__ import annotations

import warnings

import numpy as np

from tfx_largeout.datasets.xc_rows import Header, Rows

# Kinds of bytes. A separator's kind is its place in the two-separator code of a token, below.
_SPACE, _COMMA, _COLON, _NEWLINE, _DIGIT, _NUMERIC, _ILLEGAL = range(7)
# Roles of the (perhaps empty) token between two neighbouring separators.
_NOTHING, _LABEL, _FEATURE, _VALUE, _WRONG = range(5)


def _kinds() -> bytes:
    kinds = bytearray([_ILLEGAL] * 256)
    for kind, characters in [
        (_SPACE, b" \t"),
        (_COMMA, b","),
        (_COLON, b":"),
        (_NEWLINE, b"\n"),
        (_DIGIT, b"0123456789"),
        (_NUMERIC, b"+-.eE"),
    ]:
        for character in characters:
            kinds[character] = kind
    return bytes(kinds)


def _roles() -> np.ndarray:
    """The grammar: role of a token by [is it empty, separator before it, separator after it]."""
    roles = np.full([2, 4, 4], _WRONG, np.uint8)
    for before, after in [(_NEWLINE, _SPACE), (_SPACE, _SPACE), (_SPACE, _NEWLINE)]:
        roles[1, before, after] = _NOTHING
    for before in (_NEWLINE, _COMMA):
        for after in (_COMMA, _SPACE, _NEWLINE):
            roles[0, before, after] = _LABEL
    for before in (_NEWLINE, _SPACE):
        roles[0, before, _COLON] = _FEATURE
    for after in (_SPACE, _NEWLINE):
        roles[0, _COLON, after] = _VALUE
    return roles.ravel()


_KINDS = _kinds()
_ROLES = _roles()
_BLANKED = bytes.maketrans(b"\t,:\n", b"    ")


def parse_fast(block: bytes, header: Header) -> Rows | None:
    """Parses lines with array operations; None if anything is wrong with any of them."""
    kinds = np.frombuffer(block.translate(_KINDS), np.uint8)
    if kinds.max(initial=0) == _ILLEGAL:
        return None
    ends = np.flatnonzero(kinds < _DIGIT)
    after = kinds[ends]
    before = np.roll(after, 1)  # the block ends with a newline
    starts = np.roll(ends, 1) + 1
    starts[:1] = 0
    roles = _ROLES[(starts == ends) * np.uint8(16) + before * np.uint8(4) + after]
    if roles.max(initial=0) == _WRONG:
        return None
    is_label, is_feature = roles == _LABEL, roles == _FEATURE
    numeric_until = np.cumsum(kinds == _NUMERIC, dtype=np.int32)[ends]
    is_numeric = np.diff(numeric_until, prepend=np.int32(0)) > 0
    if np.any(is_numeric & (is_label | is_feature)):
        return None
    token_roles = roles[roles != _NOTHING]
    try:
        with warnings.catch_warnings():
            # With which NumPy before 2.3 gives the numbers up to one that is none.
            warnings.simplefilter("error", DeprecationWarning)
            # The leading 0 is for a block without any number, which NumPy refuses.
            numbers = np.fromstring(b"0 " + block.translate(_BLANKED), np.float64, sep=" ")[1:]
    except (ValueError, DeprecationWarning):
        return None
    if len(numbers) != len(token_roles):
        return None
    is_line_end = after == _NEWLINE
    label_lengths = np.diff(np.cumsum(is_label)[is_line_end], prepend=0)
    feature_lengths = np.diff(np.cumsum(is_feature)[is_line_end], prepend=0)
    labels = numbers[token_roles == _LABEL]
    features = numbers[token_roles == _FEATURE]
    with np.errstate(over="ignore"):
        values = numbers[token_roles == _VALUE].astype(np.float32)
    if (
        labels.max(initial=-1) >= header.num_labels
        or features.max(initial=-1) >= header.num_features
        or not np.isfinite(values).all()
    ):
        return None
    return _checked_rows(
        Rows(
            feature_lengths,
            features.astype(np.int32),
            values,
            label_lengths,
            labels.astype(np.int64),
        ),
        header,
    )


def _checked_rows(rows: Rows, header: Header) -> Rows | None:
    """The rows with their features sorted; None if an id occurs twice in a row."""
    row_of_label = np.repeat(np.arange(rows.num_examples), rows.label_lengths)
    label_keys = np.sort(row_of_label * header.num_labels + rows.label_ids)
    if np.any(label_keys[1:] == label_keys[:-1]):
        return None
    row_of_feature = np.repeat(np.arange(rows.num_examples), rows.feature_lengths)
    keys = row_of_feature * header.num_features + rows.feature_ids
    if np.all(keys[1:] > keys[:-1]):
        return rows
    order = np.argsort(keys)
    keys = keys[order]
    if np.any(keys[1:] == keys[:-1]):
        return None
    return rows._replace(
        feature_ids=rows.feature_ids[order], feature_values=rows.feature_values[order]
    )
