# SPDX-License-Identifier: Apache-2.0
"""Two codebooks for the rows of W: codes, scores and k-means."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

_BLOCK_ELEMENTS = 2**22  # products of vectors and words in memory


class Codebooks(NamedTuple):
    """Two codebooks of Q words. A row is coded by a pair (k1, k2), as the number k1 Q + k2.

    Product quantization: each word is half a row. Residual quantization: a row is about the sum of
    two words; the second one is nearest to the row minus the first word.

    Attributes:
        first: `[Q, D1]` float32.
        second: `[Q, D2]` float32. D1 + D2 = D, or D1 = D2 = D for residuals.
        is_residual: Whether the second codebook codes residuals.
    """

    first: tf.Tensor
    second: tf.Tensor
    is_residual: bool

    @property
    def num_words(self) -> int:
        """Q."""
        return int(self.first.shape[0])

    def scores(self, hidden: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns products of vectors `[n, D]` with words, `[n, Q]` each; their sum is about o_c.

        With product quantization, words are multiplied by their half of a vector.
        """
        first, second = (hidden, hidden) if self.is_residual else self._halves(hidden)
        return (
            tf.matmul(first, self.first, transpose_b=True),
            tf.matmul(second, self.second, transpose_b=True),
        )

    def codes(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the pairs of rows `[n, D]`, `[n]` int32, and squared distances from them, `[n]`.

        A distance is not finite if a row is not finite, or too long for its square.
        """
        first, second = (rows, rows) if self.is_residual else self._halves(rows)
        first_words, error = _nearest(first, self.first)
        if self.is_residual:
            second, error = rows - tf.gather(self.first, first_words), tf.zeros_like(error)
        second_words, second_error = _nearest(second, self.second)
        return first_words * self.num_words + second_words, error + second_error

    def trained(self, rows: tf.Tensor, iterations: int, anew: bool) -> Codebooks:
        """Returns codebooks after iterations of Lloyd's k-means over rows `[n, D]`, n >= Q.

        First the first codebook, then the second; `anew`: start from some of the rows instead of
        the present words. A word without rows is replaced by one of the rows farthest from their
        words.
        """
        first_rows, second_rows = (rows, rows) if self.is_residual else self._halves(rows)
        first = _lloyd(
            _some(first_rows, self.num_words) if anew else self.first, first_rows, iterations
        )
        if self.is_residual:
            second_rows = rows - tf.gather(first, _nearest(rows, first)[0])
        begin = _some(second_rows, self.num_words) if anew else self.second
        return self._replace(first=first, second=_lloyd(begin, second_rows, iterations))

    def _halves(self, vectors: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        width = self.first.shape[1]
        return vectors[:, :width], vectors[:, width:]


def map_blocks(
    visit: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]], rows: tf.Tensor, most: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Applies `visit` to rows `[n, ...]`, block by block: `[n]` int32, `[n]` float32.

    Blocks have at most `most` rows, and all the same number, to minimize padding with zeros: a few
    rows don't cost a whole block.
    """
    number, shape = tf.shape(rows)[0], tf.shape(rows)[1:]
    blocks = tf.maximum((number + most - 1) // most, 1)
    size = (number + blocks - 1) // blocks
    # A GPU can't pad int64.
    filling = tf.zeros(tf.concat([[blocks * size - number], shape], axis=0), rows.dtype)
    filled = tf.concat([rows, filling], axis=0)
    by_block = tf.map_fn(
        visit,
        tf.reshape(filled, tf.concat([[blocks, size], shape], axis=0)),
        parallel_iterations=1,
        fn_output_signature=(tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.float32)),
    )
    first, second = (tf.reshape(x, [-1])[:number] for x in by_block)
    return first, second


def _nearest(vectors: tf.Tensor, words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the nearest word of each vector, `[n]` int32, and the square of its distance.

    Only some rows of the n x Q products are in memory at a time.
    """
    most = max(1, _BLOCK_ELEMENTS // int(words.shape[0]))
    return map_blocks(lambda block: _nearest_of_block(block, words), vectors, most)


def _nearest_of_block(vectors: tf.Tensor, words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    half_squares = tf.reduce_sum(tf.square(words), axis=1) / 2
    closeness = tf.matmul(vectors, words, transpose_b=True) - half_squares
    squares = tf.reduce_sum(tf.square(vectors), axis=1)
    nearest = tf.argmax(closeness, axis=1, output_type=tf.int32)
    return nearest, squares - 2 * tf.reduce_max(closeness, axis=1)


def _lloyd(words: tf.Tensor, vectors: tf.Tensor, iterations: int) -> tf.Tensor:
    return tf.while_loop(
        lambda number, words: number < iterations,
        lambda number, words: (number + 1, _means(words, vectors)),
        (tf.constant(0), words),
        parallel_iterations=1,
    )[1]


def _means(words: tf.Tensor, vectors: tf.Tensor) -> tf.Tensor:
    """Returns the mean of the vectors nearest to each word."""
    num_words = words.shape[0]
    nearest, error = _nearest(vectors, words)
    numbers = tf.math.unsorted_segment_sum(tf.ones_like(error), nearest, num_words)
    sums = tf.math.unsorted_segment_sum(vectors, nearest, num_words)
    is_empty = numbers == 0
    farthest = tf.math.top_k(error, num_words).indices
    which = tf.gather(farthest, tf.cumsum(tf.cast(is_empty, tf.int32), exclusive=True))
    means = sums / tf.maximum(numbers, 1)[:, tf.newaxis]
    return tf.where(is_empty[:, tf.newaxis], tf.gather(vectors, which), means)


def _some(vectors: tf.Tensor, number: int) -> tf.Tensor:
    """Returns a number of evenly spaced vectors."""
    places = tf.range(number, dtype=tf.int64) * tf.shape(vectors, tf.int64)[0] // number
    return tf.gather(vectors, places)
