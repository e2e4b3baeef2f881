# SPDX-License-Identifier: Apache-2.0
"""The examples on which Hessian-free training searches for the length of its steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.hessian_free.examples import Examples


def examples_of(
    data: tuple[Any, Any, Any], held_out: Any, share: float, seed: int
) -> tuple[Examples, Examples]:
    """Returns the examples for gradients, and those for the line search.

    Args:
        data: x, y and sample weights, as `Examples.of`.
        held_out: As `line_search_examples`; None: a share of `data`.
        share: As `split`.
        seed: As `split`.
    """
    examples = Examples.of(*data)
    if held_out is None:
        return split(examples, share, seed)
    return examples, line_search_examples(held_out, examples)


def split(examples: Examples, share: float, seed: int) -> tuple[Examples, Examples]:
    """Returns the examples for gradients, and a random share of all for the line search.

    Raises:
        ValueError: None would be left for the gradients.
    """
    held_out = math.ceil(share * len(examples))
    if held_out >= len(examples):
        raise ValueError(
            "x must have examples for the gradient beside those for the line search; got "
            f"{len(examples)} in all"
        )
    order = np.random.default_rng([seed, 1]).permutation(len(examples))
    return examples.part(np.sort(order[held_out:])), examples.part(np.sort(order[:held_out]))


def line_search_examples(data: Any, others: Examples) -> Examples:
    """Returns the examples that a user gave for the line search.

    Args:
        data: `(x, y)`, `(x, y, sample_weight)` or a dataset.
        others: The examples for gradients, which look alike.

    Raises:
        ValueError: `data` is none of these, or has other shapes and dtypes.
    """
    if isinstance(data, tf.data.Dataset):
        examples = Examples.of(data)
    elif isinstance(data, (tuple, list)) and 2 <= len(data) <= 3:
        examples = Examples.of(*data)
    else:
        raise ValueError(
            "line_search_data must be (x, y), (x, y, sample_weight) or a dataset; got a "
            f"{type(data).__name__}"
        )
    if examples.spec != others.spec:
        raise ValueError(
            "line_search_data must have the shapes and dtypes of the other examples, "
            f"{others.spec}; got {examples.spec}"
        )
    return examples
