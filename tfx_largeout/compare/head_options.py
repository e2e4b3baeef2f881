# SPDX-License-Identifier: Apache-2.0
"""The options that heads may have. Each is a flag of the command line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from tfx_largeout import optimizers

ROW_OPTIMIZERS = {
    "row_adagrad": optimizers.RowAdagrad,
    "row_adam": optimizers.RowAdam,
    "row_sgd": optimizers.RowSGD,
}
OPTIMIZERS = {
    "adagrad": keras.optimizers.Adagrad,
    "adam": keras.optimizers.Adam,
    "fused_adam": optimizers.FusedAdam,
    "row_rmsprop": optimizers.RowRMSprop,
    "sgd": keras.optimizers.SGD,
    **ROW_OPTIMIZERS,
}
BIASES = ("log_frequency", "uniform", "zeros")
HASH_FAMILIES = ("dwta", "inner_product", "simhash", "wta")
SAMPLERS = ("bernoulli", "log_uniform", "uniform", "unigram")


def positive_number(text: str) -> float:
    """Parses a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"must be a number above 0; got {text!r}")
    return value


def positive_integer(text: str) -> int:
    """Parses an integer of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ValueError(f"must be an integer of at least 1; got {text!r}")
    return value


def one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    """Returns a parser of one of `choices`."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}; got {text!r}")
        return text

    return parse


class HeadOption(NamedTuple):
    """An option that a head may have.

    Attributes:
        name: As in the rows of the table of heads.
        parse: Turns text into a value; raises ValueError with the rule and the text.
        help: One line.
    """

    name: str
    parse: Callable[[str], Any]
    help: str

    @property
    def flag(self) -> str:
        """The flag of the command line."""
        return "--" + self.name.replace("_", "-")


HEAD_OPTIONS = (
    HeadOption("optimizer", one_of(tuple(OPTIMIZERS)), f"optimizer: {', '.join(OPTIMIZERS)}"),
    HeadOption("learning_rate", positive_number, "its learning rate"),
    HeadOption(
        "trunk_optimizer",
        one_of(("same", *OPTIMIZERS)),
        "optimizer of the trunk (keras.optimizers.MultiOptimizer); `same` is one for all weights",
    ),
    HeadOption(
        "trunk_learning_rate", positive_number, "its learning rate, where that is not `same`"
    ),
    HeadOption(
        "head_optimizer",
        one_of(tuple(ROW_OPTIMIZERS)),
        f"of a head that updates its own rows: {', '.join(ROW_OPTIMIZERS)}",
    ),
    HeadOption("head_learning_rate", positive_number, "of a head that updates itself"),
    HeadOption(
        "bias",
        one_of(BIASES),
        "where it begins: at log class frequencies, at -log C (uniform), or at 0 (zeros)",
    ),
    HeadOption(
        "num_sampled", positive_integer, "candidate classes drawn for a batch or an example, S"
    ),
    HeadOption("num_selected", positive_integer, "classes kept for an example's gradient, S"),
    HeadOption("backward", one_of(("selected", "all")), "classes of the exact softmax's gradient"),
    HeadOption("products", one_of(("float32", "bfloat16")), "what the exact softmax multiplies"),
    HeadOption("num_true", positive_integer, "labels of an example that a step looks at, T"),
    HeadOption("sampler", one_of(SAMPLERS), f"of the candidates: {', '.join(SAMPLERS)}"),
    HeadOption("num_found", positive_integer, "candidate classes taken from an index"),
    HeadOption("candidates", one_of(("own", "shared")), "an example's own, or shared by the batch"),
    HeadOption("num_words", positive_integer, "words of each of two codebooks, at most C, Q"),
    HeadOption("top_k", positive_integer, "candidate classes with the greatest logits, K"),
    HeadOption(
        "hash_family",
        one_of(HASH_FAMILIES),
        f"of an index: {', '.join(HASH_FAMILIES)} (SimHash of inner products)",
    ),
    HeadOption("hashes_per_table", positive_integer, "hash functions of a table, K"),
    HeadOption("num_tables", positive_integer, "hash tables, L"),
)

TUNED_CLASSES = 139_536  # of the shipped data, for which defaults were chosen
_NUMBERS_OF_CLASSES = ("num_sampled", "num_found", "num_selected", "num_words", "top_k")


def without_unused(options: dict[str, Any]) -> dict[str, Any]:
    """Returns options of a head without those that its other options make void."""
    if options.get("trunk_optimizer") != "same":
        return dict(options)
    return {name: value for name, value in options.items() if name != "trunk_learning_rate"}


def fitted(
    options: dict[str, Any],
    defaults: dict[str, Any],
    num_classes: int,
    in_proportion: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Returns options whose defaults go with the number of classes; what the user chose stays.

    Args:
        options: The options of a head.
        defaults: Their defaults, for the shipped data.
        num_classes: C. Numbers of classes among the options are at most C.
        in_proportion: Options that are in proportion to C.
    """
    untouched = {name: value for name, value in options.items() if value == defaults[name]}
    at_most = {
        name: min(untouched[name], num_classes) for name in _NUMBERS_OF_CLASSES if name in untouched
    }
    scaled = {
        name: untouched[name] * num_classes / TUNED_CLASSES
        for name in in_proportion
        if name in untouched
    }
    return {**options, **at_most, **scaled}


def choose_options(
    option: HeadOption, texts: list[str], defaults: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Reads what the user gave for one option: `VALUE` for all heads, or `HEAD=VALUE`.

    Args:
        option: The option.
        texts: What came with the flag, in order; each may hold several, parted by commas.
        defaults: The chosen heads, and the default options of each.

    Returns:
        For each head that has the option and got a value, `{option name: value}`. A value for
        one head goes before a value for all.

    Raises:
        ValueError: One sentence with flag, rule and value.
    """
    having = [head for head, options in defaults.items() if option.name in options]
    everywhere: dict[str, Any] = {}
    alone: dict[str, Any] = {}
    for text in ",".join(texts).split(","):
        head, equals, value = text.rpartition("=")
        if equals and head not in having:
            rule = f"must be for a chosen head that has this option ({', '.join(having) or 'none'})"
            raise ValueError(f"{option.flag} {rule}; got {text!r}")
        if not having:
            raise ValueError(f"{option.flag} must be an option of a chosen head; got {text!r}")
        try:
            parsed = option.parse(value)
        except ValueError as error:
            raise ValueError(f"{option.flag} {error}") from None
        if equals:
            alone[head] = parsed
        else:
            everywhere.update(dict.fromkeys(having, parsed))
    return {head: {option.name: value} for head, value in {**everywhere, **alone}.items()}
