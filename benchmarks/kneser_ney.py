# SPDX-License-Identifier: Apache-2.0
"""A count-based language model for comparison: interpolated modified Kneser-Ney.

The same words as in examples/ngram_language_model.py: one stream, each line ended by `</s>`, the
vocabulary of the whole text, the last words held out. Their perplexity is a row of
benchmarks/results/kneser_ney.csv.

    p_n(w | u v) = (c(u v w) - D_c) / c(u v .) + gamma(u v) p_{n-1}(w | v),  p_0 = 1 / V

with counts c of n-grams at the highest order, and below it the numbers of distinct preceding words;
three discounts per order; gamma(u v) is the mass taken by discounts, so that p sums to 1.

    python benchmarks/kneser_ney.py novels.txt.xz --order 5

Chen, Goodman 1999, An empirical study of smoothing techniques for language modeling, section 3.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import NamedTuple

import harness
import numpy as np

OUTPUT = harness.RESULTS / "kneser_ney.csv"


class Order(NamedTuple):
    """The n-grams of one order: an n-gram is its context's number times V, plus its last word.

    Attributes:
        keys: Of all n-grams, ascending; the place of a key is the number of its n-gram.
        discounted: Counts less their discounts.
        totals: `c(u v .)` of each context.
        taken: The discount of the counts of each context.
    """

    keys: np.ndarray
    discounted: np.ndarray
    totals: np.ndarray
    taken: np.ndarray


class KneserNey:
    """The model of a text of word numbers below `num_words`."""

    def __init__(self, text: np.ndarray, num_words: int, order: int) -> None:
        self.num_words = num_words
        contexts, grams = np.zeros(len(text), np.int64), []
        for n in range(1, order + 1):
            keys, first, ends = np.unique(
                contexts * num_words + text[n - 1 :], return_index=True, return_inverse=True
            )
            grams.append((keys, contexts[first], first, ends))
            contexts = ends[:-1]
        self.orders: list[Order] = []
        for n, (keys, contexts, _, ends) in enumerate(grams):
            if n + 1 < order:  # the number of words that occur before it
                ends = ends[grams[n + 1][2] + 1]
            counts = np.bincount(ends, minlength=len(keys))
            self.orders.append(_order(keys, counts, contexts, len(grams[n - 1][0]) if n else 1))

    def probabilities(self, text: np.ndarray) -> np.ndarray:
        """Returns p of each word of a text after those before it."""
        p, context = np.full(len(text), 1 / self.num_words), np.zeros(len(text), np.int64)
        for order in self.orders:
            p = self._add_order(order, context, text, p)
            context = _after(_numbers(order.keys, context, text, self.num_words))
        return p

    def distribution(self, history: np.ndarray) -> np.ndarray:
        """Returns p of all words after a history, `[V]`."""
        words, p = np.arange(self.num_words), np.full(self.num_words, 1 / self.num_words)
        context, last = np.zeros(len(history), np.int64), 0
        for order in self.orders:
            p = self._add_order(order, np.full(self.num_words, last), words, p)
            ends = _numbers(order.keys, context, history, self.num_words)
            context, last = _after(ends), ends[-1] if len(ends) else -1
        return p

    def _add_order(
        self, order: Order, context: np.ndarray, words: np.ndarray, lower: np.ndarray
    ) -> np.ndarray:
        number = _numbers(order.keys, context, words, self.num_words)
        seen = (context >= 0) & (order.totals[np.maximum(context, 0)] > 0)
        place = np.where(seen, context, 0)
        own = np.where(number >= 0, order.discounted[np.maximum(number, 0)], 0)
        mixed = (own + order.taken[place] * lower) / np.maximum(order.totals[place], 1e-9)
        return np.where(seen, mixed, lower)


def _order(keys: np.ndarray, counts: np.ndarray, contexts: np.ndarray, num_contexts: int) -> Order:
    ones, twos, threes, fours = (np.count_nonzero(counts == k) for k in (1, 2, 3, 4))
    y = ones / max(ones + 2 * twos, 1)
    discounts = np.array(
        [
            0,
            1 - 2 * y * twos / max(ones, 1),
            2 - 3 * y * threes / max(twos, 1),
            3 - 4 * y * fours / max(threes, 1),
        ]
    )
    taken = discounts[np.minimum(counts, 3)]
    return Order(
        keys,
        counts - taken,
        np.bincount(contexts, counts, num_contexts),
        np.bincount(contexts, taken, num_contexts),
    )


def _after(ends: np.ndarray) -> np.ndarray:
    """Returns the contexts of words, given the numbers of what ends at each of them."""
    return np.concatenate([np.full(min(len(ends), 1), -1), ends[:-1]])


def _numbers(
    keys: np.ndarray, context: np.ndarray, words: np.ndarray, num_words: int
) -> np.ndarray:
    """Returns the numbers of n-grams, -1 where there is none or no context."""
    wanted = context * num_words + words
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where((context >= 0) & (keys[place] == wanted), place, -1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--words", type=int, help="only the first words of the text")
    parser.add_argument("--held-out", type=int, default=20_000, help="last words, to evaluate on")
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import ngram_language_model as example

    vocabulary, text = example.number_words(example.read_words(arguments.text, arguments.words))
    train = text[: -arguments.held_out]
    start = time.perf_counter()
    model = KneserNey(train, len(vocabulary), arguments.order)
    seconds = time.perf_counter() - start
    for history in (train[:0], train[:3], train[-50:], train[::-1][:20]):
        total = model.distribution(history).sum()
        assert abs(total - 1) < 1e-9, f"p must sum to 1; got {total}"
    # The words before the held-out ones are their history, as they are for the network.
    history = arguments.order - 1
    p = model.probabilities(text[-arguments.held_out - history :])[history:]
    row = {
        "text": arguments.text.name,
        "words": len(text),
        "vocabulary": len(vocabulary),
        "held_out": arguments.held_out,
        "order": arguments.order,
        "perplexity": f"{np.exp(-np.log(p).mean()):.1f}",
        "seconds_to_count": f"{seconds:.1f}",
    }
    print(row)
    harness.append_row(OUTPUT, {**row, **harness.machine()})


if __name__ == "__main__":
    main()
