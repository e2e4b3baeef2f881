# SPDX-License-Identifier: Apache-2.0
"""Parses lines one by one, to say which rule a line breaks."""

from __future__ import annotations

import math
import re

import numpy as np

from tfx_largeout.datasets.line_blocks import shorten
from tfx_largeout.datasets.xc_rows import Header, Rows

_INTEGER = re.compile(rb"0*([0-9]{1,18})")
# There is one way only to match some digits, so that long ones take linear time.
_NUMBER = re.compile(rb"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MAX_IDS = np.iinfo(np.int32).max


def parse_header(path: str, line: bytes) -> Header:
    """Returns what the first line of a file promises; raises ValueError if it breaks a rule."""
    numbers = [_parse_integer(word) for word in re.split(rb"[ \t]+", line.strip(b" \t"))]
    counts = [number for number in numbers if number is not None]
    if len(numbers) != 3 or len(counts) != 3:
        raise ValueError(
            f"{path}:1: the header must be three integers of at most 18 digits, the numbers of "
            f"examples, features and labels; got {shorten(line)}"
        )
    header = Header(*counts)
    for what, count in (("features", header.num_features), ("labels", header.num_labels)):
        if count > _MAX_IDS:
            raise ValueError(
                f"{path}:1: the number of {what} must be at most {_MAX_IDS}; got {count}"
            )
    return header


def parse_slowly(path: str, number: int, block: bytes, header: Header) -> Rows:
    """Parses lines one by one; raises ValueError at the first that breaks a rule."""
    feature_lengths, label_lengths = [], []
    all_features: list[tuple[int, float]] = []
    all_labels: list[int] = []
    for offset, line in enumerate(block[:-1].split(b"\n")):
        try:
            labels, features = _parse_line(line, header)
        except ValueError as error:
            raise ValueError(f"{path}:{number + offset}: {error}") from None
        label_lengths.append(len(labels))
        all_labels += labels
        feature_lengths.append(len(features))
        all_features += sorted(features.items())
    return Rows(
        np.array(feature_lengths, np.int64),
        np.array([feature for feature, _ in all_features], np.int32),
        np.array([value for _, value in all_features], np.float32),
        np.array(label_lengths, np.int64),
        np.array(all_labels, np.int64),
    )


def _parse_line(line: bytes, header: Header) -> tuple[list[int], dict[int, float]]:
    """Labels and features of one line. This is the definition of the format."""
    if not line:
        raise ValueError("a line must hold an example; got a blank line")
    words = line.replace(b"\t", b" ").split(b" ")
    labels: dict[int, None] = {}  # a set in the order of the line
    if words[0] and b":" not in words[0]:
        for word in words.pop(0).split(b","):
            label = _parse_id("label", word, header.num_labels)
            if label in labels:
                raise ValueError(f"a label must not occur twice in a line; got {label} again")
            labels[label] = None
    features: dict[int, float] = {}
    for word in filter(None, words):
        key, colon, value = word.partition(b":")
        if not colon:
            raise ValueError(f"a feature must be written id:value; got {shorten(word)}")
        feature = _parse_id("feature", key, header.num_features)
        if feature in features:
            raise ValueError(f"a feature must not occur twice in a line; got {feature} again")
        features[feature] = _parse_value(feature, value)
    return list(labels), features


def _parse_id(what: str, word: bytes, limit: int) -> int:
    value = _parse_integer(word)
    if value is None or value >= limit:
        raise ValueError(f"a {what} must be an integer in [0, {limit}); got {shorten(word)}")
    return value


def _parse_integer(word: bytes) -> int | None:
    match = _INTEGER.fullmatch(word)
    return int(match[1]) if match else None


def _parse_value(feature: int, word: bytes) -> float:
    with np.errstate(over="ignore"):
        value = float(np.float32(float(word))) if _NUMBER.fullmatch(word) else math.nan
    if not math.isfinite(value):
        raise ValueError(
            f"the value of feature {feature} must be a finite float32 number; got {shorten(word)}"
        )
    return value
