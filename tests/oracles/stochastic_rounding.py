# SPDX-License-Identifier: Apache-2.0
"""Rounding to bfloat16 by random bits, in Python's integers and NumPy float64."""

from __future__ import annotations

import numpy as np

_WORD, _LONG = 2**32 - 1, 2**64 - 1


def scrambled(x):
    """A step of SplitMix64."""
    x = (x + 0x9E3779B97F4A7C15) & _LONG
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _LONG
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _LONG
    return x ^ (x >> 31)


def word(low, high, column):
    """32 random bits of a column, by a key."""
    x = (column * 0x9E3779B9 + low) & _WORD
    x = ((x ^ (x >> 16)) * 0x21F0AAAD & _WORD) ^ high
    x = (x ^ (x >> 15)) * 0x735A2D97 & _WORD
    return x ^ (x >> 15)


def key(seed, step, variable, class_id):
    """The key of a row: a low and a high half."""
    whole = scrambled(scrambled(scrambled(scrambled(seed) ^ step) ^ variable) ^ class_id)
    return whole & _WORD, whole >> 32


def weight_bits(seed, step, variable, class_id, width):
    """Numbers below 2^16 for the weights of a row."""
    low, high = key(seed, step, variable, class_id)
    return np.array([word(low, high, d) & 0xFFFF for d in range(width)], np.float64)


def moment_bits(seed, step, variable, class_id, width):
    """Numbers below 2^16 for the first and for the second moment of a row."""
    low, high = key(seed, step, variable, class_id)
    words = np.array([word(high, low ^ _WORD, d) for d in range(width)], np.int64)
    return (words & 0xFFFF).astype(np.float64), (words >> 16).astype(np.float64)


def neighbours(x):
    """The numbers of bfloat16 (8 bits, exponents from -126 on) at and next to |x|."""
    x = np.abs(np.asarray(x, np.float64))
    exponents = np.frexp(np.where(x == 0, 1.0, x))[1] - 1
    gap = 2.0 ** (np.maximum(exponents, -126) - 7)
    lower = np.floor(x / gap) * gap
    return lower, lower + gap


def rounded_at_random(x, bits):
    """x, up with a probability that is its distance from the lower neighbour over the gap."""
    x = np.asarray(x, np.float64)
    lower, upper = neighbours(x)
    distance = np.floor((np.abs(x) - lower) / (upper - lower) * 2**16)  # float32 has 16 bits more
    return np.sign(x) * np.where(distance + bits >= 2**16, upper, lower)


def rounded_to_nearest(x):
    """The nearest number of bfloat16, of two the even one."""
    lower, upper = neighbours(x)
    parts = (np.abs(x) - lower) / (upper - lower)
    even = np.mod(lower / (upper - lower), 2) == 0
    up = (parts > 0.5) | ((parts == 0.5) & ~even)
    return np.sign(x) * np.where(up, upper, lower)
