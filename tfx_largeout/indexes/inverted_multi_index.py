# SPDX-License-Identifier: Apache-2.0
"""InvertedMultiIndex: rows of W coded by two codebooks, and classes listed by pair of words."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import (
    at_most_classes,
    choice_argument,
    flag_argument,
    integer_argument,
    number_argument,
)
from tfx_largeout.class_counts import check_length, class_counts, smoothed
from tfx_largeout.indexes.base import Index, filled
from tfx_largeout.memory import Weight
from tfx_largeout.ops.checks import check_finite
from tfx_largeout.ops.multi_index.codebooks import Codebooks, map_blocks
from tfx_largeout.ops.multi_index.multi_index_draws import (
    ClassLists,
    CodedClasses,
    PairSoftmax,
    whole_weights,
)
from tfx_largeout.ops.rows.variable_rows import (
    bare_variable,
    gather,
    scatter_update,
    signed,
    unsigned,
)
from tfx_largeout.run_time_checks import Check, after
from tfx_largeout.saving import pack_array

_QUANTIZATIONS = ("pq", "rq")
_PLAIN_ARGUMENTS = (
    *("num_words", "quantization", "with_bias", "power"),
    *("first_period", "growth", "codebook_rounds", "seed"),
)
_MOST_WORDS = 4096  # Q^2 pairs take 4 and 8 bytes each
_ROWS_OF_A_WORD = 256  # rows per word for k-means
_ITERATIONS = 10  # of k-means in a rebuild
_BLOCK_ROWS = 2**12  # rows coded at a time
_ROWS_OF_HEALTH = 4096


@keras.saving.register_keras_serializable(package="tfx_largeout")
class InvertedMultiIndex(Index):
    """Codes for the rows of W, pairs of words from two codebooks of Q words: the index of `MIDX`.

    - `"pq"`, product quantization: words of the first codebook are first halves of rows, words
      of the second are second halves: w_c is about (c1, c2).
    - `"rq"`, residual quantization: w_c is about c1 + c2, where c2 is the word nearest to w_c - c1.

    With the scores s1 = h . c1 and s2 = h . c2 (with `"pq"`, of the halves of h) the softmax over
    coded rows is

        q(c|h) = v_c exp(s1[k1] + s2[k2]) / sum_{k1,k2} N[k1,k2] exp(s1[k1] + s2[k2])

    where (k1, k2) is the pair of c, v_c its weight, and N the sum of the weights of a pair's
    classes. Computing q of any class, and drawing from it, costs O(Q D + Q^2) per example,
    independent of C.

    Weights: v_c = exp(b_c) n_c^power, with the bias unless `with_bias` is False, and with counts
    n_c if given. They are rounded to integers from 1 to 2^30, and q uses the rounded weights:
    candidates are drawn exactly from q.

    **Following W.** Training changes rows. `update`, which a head calls at the end of each step,
    marks the changed ones. After a period of steps (a round), at first `first_period`, and `growth`
    times as many after each round, marked rows are coded again, and all weights are computed from
    the present bias. Each `codebook_rounds`-th round first moves the words, by an iteration of
    k-means over about 256 Q rows, and codes all rows. Between rounds q is the one of the last
    round: expected counts are exact, but q is further from the softmax. The work is part of the
    step: runs are reproducible and can be resumed, bit for bit. After other changes of W call
    `rebuild`.

    A word without rows is replaced by one of the rows that are farthest from their words.

    Cost: 21 bytes per class, 29 with counts, 8 Q D and 4 Q^2; a round O(C log C + n Q D), where n
    is C or the number of marked rows.

    Args:
        num_words: Q, at most C and 4,096. Default 64.
        quantization: `"pq"` or `"rq"`. Default `"rq"`.
        with_bias: Whether weights include exp(b_c). Default True.
        counts: n_c, `[C]` numbers of at least 0 (if one is 0, smoothed as in `LogFrequency`).
            Default None: no counts.
        power: The power of the counts, in [0, 1]. Default 1.
        first_period: Steps of the first round. Default 50.
        growth: The growth of the period from round to round, at least 1. Default 1.1.
        codebook_rounds: Words move in every `codebook_rounds`-th round. Default 1.
        seed: The seed of the choice of rows for k-means. Default 0.
        **kwargs: `name`, as for any Keras layer.

    Raises:
        TypeError: `counts` are not numbers.
        ValueError: An argument is out of range; when it is built, `num_words` is above C, a row is
            too short for halves, or there are not C counts; later, the shape of W differs from the
            first one.
        RuntimeError: When a head with it is built, over several workers.

    References:
        Chen, Zhang, Huang, Yang, Lian, Chen 2025, Adaptive sampled softmax with inverted
        multi-index: methods, theory and applications; Babenko, Lempitsky 2012, The inverted
        multi-index; Sculley 2010, Web-scale k-means clustering.

    Deviations: Codebooks follow W in training, by mini-batches; they are not learned by gradients.
        Scores more than 300 below the greatest score of an example are raised to that limit.
    """

    def __init__(
        self,
        num_words: int = 64,
        quantization: str = "rq",
        with_bias: bool = True,
        counts: Any = None,
        power: float = 1.0,
        first_period: float = 50,
        growth: float = 1.1,
        codebook_rounds: int = 1,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_words = integer_argument("num_words", num_words, at_least=1)
        if self.num_words > _MOST_WORDS:
            raise ValueError(f"num_words must be at most {_MOST_WORDS}; got {num_words}")
        self.quantization = choice_argument("quantization", quantization, _QUANTIZATIONS)
        self.with_bias = flag_argument("with_bias", with_bias)
        self.counts = None if counts is None else smoothed(class_counts(counts))
        self.power = number_argument("power", power, at_least=0, at_most=1)
        self.first_period = number_argument("first_period", first_period, at_least=1)
        self.growth = number_argument("growth", growth, at_least=1)
        self.codebook_rounds = integer_argument("codebook_rounds", codebook_rounds, at_least=1)
        self.seed = integer_argument("seed", seed, at_least=0)
        if self.seed >= 2**63:
            raise ValueError(f"seed must be below 2**63; got {seed}")

    def check_shape(self, num_classes: int, width: int) -> None:
        at_most_classes("num_words", self.num_words, num_classes)
        if self.quantization == "pq" and width < 2:
            raise ValueError(
                f"quantization='pq' must go with rows of at least 2 numbers; got {width}"
            )
        if self.counts is not None:
            check_length(self.counts, num_classes)

    def build(self, input_shape: tuple[int, int]) -> None:
        """Allocates codebooks and codes for W `[C, D]`."""
        num_classes, width = input_shape
        self.check_shape(num_classes, width)
        self._shape = (num_classes, width)
        words, pairs = self.num_words, self.num_words**2
        widths = self._word_widths(width)
        self.first_words = self._add("first_words", [words, widths[0]], np.float32)
        self.second_words = self._add("second_words", [words, widths[1]], np.float32)
        # int32 bits: a GPU has no int32 variables.
        self.codes = self._add("codes", [num_classes])
        self.class_weights = self._add("class_weights", [num_classes])
        self.entries = self._add("entries", [num_classes])
        self.starts = self._add("starts", [pairs + 1])
        self.sums = self._add("sums", [num_classes + 1], np.int64)
        if self.counts is not None:
            self.log_counts = self.add_derived("log_counts", self.power * np.log(self.counts))
        self.changed = self._add("changed", [num_classes], np.bool_)
        self.clock = self._add("clock", [], np.int64)
        schedule = np.array([0.0, self.first_period, 0.0])
        self.schedule = self.add_derived("schedule", schedule)  # steps, period, rounds
        self.built = True

    def weights_of(self, num_classes: int, width: int) -> list[Weight]:
        shapes: list[tuple[tuple[int, ...], str]] = [
            ((self.num_words, each), "float32") for each in self._word_widths(width)
        ]
        shapes += [((num_classes,), "uint32")] * 3 + [((self.num_words**2 + 1,), "uint32")]
        shapes += [((num_classes + 1,), "int64"), ((num_classes,), "bool")]
        if self.counts is not None:
            shapes.append(((num_classes,), "float64"))
        return [Weight(shape, dtype, "index") for shape, dtype in shapes]

    def workspace(self, num_classes: int) -> int:
        """As `Index`: codes, weights, their order and sums, in addition to the present ones."""
        return 100 * num_classes

    def _word_widths(self, width: int) -> tuple[int, int]:
        """Returns how many numbers a word of the first codebook has, and one of the second."""
        return (width, width) if self.quantization == "rq" else ((width + 1) // 2, width // 2)

    def rebuild(self, kernel: Any, bias: Any = None) -> None:
        """Rebuilds the codebooks from W, and codes all rows.

        Raises:
            tf.errors.InvalidArgumentError: W or b is not finite. The index is unchanged then.
        """
        kernel = self.kernel_of(kernel, build=True)
        self._code(kernel, bias, self._trained(kernel, _ITERATIONS, anew=True), self._every)

    def update(self, kernel: Any, bias: Any, touched: tf.Tensor) -> None:
        """Marks rows that a step changed, and codes marked rows when a round is due.

        Raises:
            tf.errors.InvalidArgumentError: W or b is not finite. Codebooks and codes are unchanged
                then.
        """
        kernel = self.kernel_of(kernel)
        if self.codebook_rounds > 1:  # otherwise every round codes all rows
            touched = tf.boolean_mask(touched, touched >= 0)
            scatter_update(bare_variable(self.changed), touched, tf.ones_like(touched, tf.bool))
        steps, period, rounds = tf.unstack(self.schedule.value)
        is_time = steps + 1 >= period

        def code() -> tf.Tensor:
            books, rows = tf.cond(
                tf.math.floormod(rounds + 1, self.codebook_rounds) == 0,
                lambda: (self._trained(kernel, 1, anew=False)[:2], self._every),
                lambda: (self._codebooks[:2], tf.where(self.changed.value)[:, 0]),
            )
            self._code(
                kernel, bias, self._codebooks._replace(first=books[0], second=books[1]), rows
            )
            return tf.constant(True)

        coded = tf.cond(is_time, code, lambda: tf.constant(False))
        after_round, after_step = (
            [0.0, period * self.growth, rounds + 1],
            [steps + 1, period, rounds],
        )
        with tf.control_dependencies([coded]):  # raises for values that are not finite
            self.schedule.assign(tf.where(coded, after_round, after_step))

    def softmax(self, hidden: tf.Tensor) -> PairSoftmax:
        """Returns the distribution for each of the vectors `[B, D]`, by the last round.

        Raises:
            tf.errors.InvalidArgumentError: `rebuild` has never run; the index is corrupt (methods
                of the result may raise this, too).
        """
        self.require_built()
        books = self._codebooks
        lists = self._lists
        checks = [
            check_finite(name, words)
            for name, words in (("first_words", books.first), ("second_words", books.second))
        ]
        with after([self._check_rebuilt(), *checks, lists.check()]):
            scores = books.scores(tf.cast(hidden, tf.float32))
            lists = ClassLists(*(tf.identity(x) for x in lists))
        return PairSoftmax.of(scores, CodedClasses(lists, signed(self.class_weights.value)))

    def health(self, kernel: Any, bias: Any = None) -> dict[str, tf.Tensor]:
        """Returns measures of the codes' quality, scalars in [0, 1], for 4,096 rows.

        - `occupied`: share of the pairs with a class;
        - `largest_pair`: share of the weights in the heaviest pair;
        - `distortion`: the squared distance of rows from their code words, divided by the squared
          length of the rows;
        - `stale`: share of the rows whose code has changed.

        Cost: O(Q^2 + 4,096 Q D). Arguments: as `rebuild`.
        """
        self.check_built_for(kernel)
        ids = self._some_rows(_ROWS_OF_HEALTH, tf.constant(0, tf.int64))
        rows = tf.cast(gather(bare_variable(kernel), ids), tf.float32)
        codes, distances = self._codebooks.codes(rows)
        is_stale = codes != signed(gather(bare_variable(self.codes), ids))
        masses = tf.cast(self._lists.masses(), tf.float32)
        distances, squares = (tf.reduce_sum(x) for x in (tf.maximum(distances, 0), rows**2))
        return {
            "occupied": tf.reduce_mean(tf.cast(masses > 0, tf.float32)),
            "largest_pair": tf.math.divide_no_nan(tf.reduce_max(masses), tf.reduce_sum(masses)),
            "distortion": tf.minimum(tf.math.divide_no_nan(distances, squares), 1),
            "stale": tf.reduce_mean(tf.cast(is_stale, tf.float32)),
        }

    def get_config(self) -> dict[str, Any]:
        counts = None if self.counts is None else pack_array(self.counts)
        arguments = {name: getattr(self, name) for name in _PLAIN_ARGUMENTS}
        return {**super().get_config(), "counts": counts, **arguments}

    @property
    def _codebooks(self) -> Codebooks:
        is_residual = self.quantization == "rq"
        return Codebooks(self.first_words.value, self.second_words.value, is_residual)

    @property
    def _lists(self) -> ClassLists:
        codes, entries, starts = (signed(x.value) for x in (self.codes, self.entries, self.starts))
        return ClassLists(codes, entries, starts, self.sums.value)

    @property
    def _every(self) -> tf.Tensor:
        return tf.range(self.codes.shape[0], dtype=tf.int64)

    def _some_rows(self, number: int, offset: tf.Tensor) -> tf.Tensor:
        """Returns a number of evenly spaced rows, at most C, the first at offset / number."""
        number = min(number, self.codes.shape[0])
        return (tf.range(number, dtype=tf.int64) * self.codes.shape[0] + offset) // number

    def _trained(self, kernel: tf.Variable, iterations: int, anew: bool) -> Codebooks:
        """Returns codebooks after some iterations of k-means over some rows."""
        seed = tf.stack([tf.constant(self.seed, tf.int64), self.clock.value])
        num_classes = self.codes.shape[0]
        offset = tf.random.stateless_uniform([], seed, 0, num_classes, tf.int64)
        ids = self._some_rows(self.num_words * _ROWS_OF_A_WORD, offset)
        rows = tf.cast(gather(kernel, ids), tf.float32)
        with after([_check_rows(ids, tf.reduce_sum(rows**2, axis=1))]):
            return self._codebooks.trained(tf.identity(rows), iterations, anew)

    def _code(self, kernel: tf.Variable, bias: Any, books: Codebooks, ids: tf.Tensor) -> None:
        """Codes some rows, and computes all weights; or changes nothing."""
        codes, distances = _codes_of(kernel, ids, books)
        old_codes = signed(self.codes.value)
        every_code = tf.tensor_scatter_nd_update(old_codes, ids[:, tf.newaxis], codes)
        log_weights = self._log_weights(bias)
        weights = whole_weights(log_weights)
        lists = ClassLists.of(every_code, weights, self.num_words**2)
        with after([_check_rows(ids, distances), check_finite("bias", log_weights)]):
            self.first_words.assign(books.first)
            self.second_words.assign(books.second)
            self.codes.assign(unsigned(lists.codes))
            self.class_weights.assign(unsigned(weights))
            self.entries.assign(unsigned(lists.entries))
            self.starts.assign(unsigned(lists.starts))
            self.sums.assign(lists.sums)
            self.changed.assign(tf.zeros_like(self.changed.value))
            self.clock.assign_add(1)

    def _check_rebuilt(self) -> Check:
        message = "index must be made from W before it is asked: call index.rebuild(kernel)"
        return Check(self.clock.value > 0, lambda: [message])

    def _log_weights(self, bias: Any) -> tf.Tensor:
        """Returns log v_c, `[C]` float64."""
        result = tf.zeros([self.codes.shape[0]], tf.float64)
        if self.counts is not None:
            result += self.log_counts.value
        if self.with_bias and bias is not None:
            result += tf.cast(bare_variable(bias).read_value(), tf.float64)
        return result

    def _add(self, name: str, shape: list[int], dtype: Any = np.uint32) -> Any:
        return self.add_derived(name, filled(shape, dtype))


def _codes_of(kernel: tf.Variable, ids: tf.Tensor, books: Codebooks) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the codes of rows of W, read in blocks, and their squared distances."""

    def of_block(some: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return books.codes(tf.cast(gather(kernel, some), tf.float32))

    return map_blocks(of_block, ids, _BLOCK_ROWS)


def _check_rows(ids: tf.Tensor, squares: tf.Tensor) -> Check:
    wrong = ~tf.math.is_finite(squares)

    def message() -> list[Any]:
        first = tf.boolean_mask(ids, wrong)[:1]
        return [
            "kernel must be finite, and its rows short enough for their squares; got row",
            first,
        ]

    return Check(~tf.reduce_any(wrong), message)
