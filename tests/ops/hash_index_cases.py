# SPDX-License-Identifier: Apache-2.0
"""Hash functions, vectors and tables for the ops of the hash index."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops import streamed_logits_cases
from oracles import hash_index as oracle

from tfx_largeout.ops import library
from tfx_largeout.ops.hashing.hash_codes import HashFunctions
from tfx_largeout.ops.hashing.hash_tables import HashTables

# Each compiled instruction set of the custom op, and the fallback.
IMPLEMENTATIONS = streamed_logits_cases.IMPLEMENTATIONS

KINDS = ["wta", "dwta", "sign"]


def use(name, monkeypatch) -> str:
    """As for streamed_logits; skips if the library is older."""
    implementation = streamed_logits_cases.use(name, monkeypatch)
    if implementation == "op" and not hasattr(library.load(), "tfx_hash_codes"):
        pytest.skip("this library has no hash index")
    return implementation


def functions_of(kind, rng, width, window, count) -> HashFunctions:
    """At least `count` functions; planes of small whole numbers, whose products are exact."""
    if kind == "sign":
        return HashFunctions.by_planes(streamed_logits_cases.integers(rng, count, width))
    if kind == "wta":
        elements = np.stack([rng.permutation(width)[:window] for _ in range(count)])
        return HashFunctions.by_winner(elements)
    bins = width // window
    groups = [
        rng.permutation(width)[: bins * window].reshape(bins, window)
        for _ in range(-(-count // bins))
    ]
    return HashFunctions.by_winner(np.concatenate(groups), bins)


def base_of(functions) -> int:
    """How many values a function has."""
    return functions.elements.shape[1] if len(functions.elements) else 2


def random_vectors(rng, n, width) -> np.ndarray:
    """Small whole numbers with many ties and zeros of both signs; some vectors are nearly 0."""
    vectors = streamed_logits_cases.integers(rng, n, width)
    density = rng.choice([0.0, 0.03, 0.2, 0.6, 1.0], (n, 1))
    vectors = np.where(rng.random((n, width)) < density, vectors, 0)
    negative_zero = (vectors == 0) & (rng.random((n, width)) < 0.5)
    return np.where(negative_zero, -0.0, vectors).astype(np.float32)


def expected_codes(vectors, functions, num_tables, hashes_per_table) -> np.ndarray:
    """The codes of the oracle, `[n, L]`."""
    if len(functions.elements):
        values = oracle.winner_values(vectors, functions.elements, functions.bins)
    else:
        values = oracle.sign_values(vectors, functions.planes)
    return oracle.codes(vectors, values, base_of(functions), num_tables, hashes_per_table)


def expected_tables(codes, num_buckets) -> tuple[np.ndarray, np.ndarray]:
    """Entries and starts of all tables, from codes `[C, L]`."""
    tables = [oracle.table(codes[:, t], num_buckets) for t in range(codes.shape[1])]
    return tuple(np.stack(parts) for parts in zip(*tables, strict=True))


def empty_tables(num_tables, num_classes, num_buckets) -> HashTables:
    """Variables as a new index has them."""
    shapes = (num_tables, num_classes), (num_tables, num_buckets + 1), (num_classes,)
    zeros = [tf.Variable(tf.zeros(shape, tf.uint32)) for shape in shapes]
    return HashTables(*zeros, tf.Variable(np.full(num_tables, 2**32 - 1, np.uint32)))


def numbers_of(variable) -> np.ndarray:
    """Returns the value of an index's variable: int32 stored as uint32."""
    return variable.numpy().view(np.int32)


def arrays(tables) -> list[np.ndarray]:
    """Copies of the state."""
    return [variable.numpy().copy() for variable in tables]
