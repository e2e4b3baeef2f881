# SPDX-License-Identifier: Apache-2.0
"""The options that heads may have. Each is a flag of the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import keras
import numpy as np

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
_MOST = 2**31 - 1


def positive_number(text: str) -> float:
    """Parses a number above 0 that is one in float32, too."""
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not 0 < value < np.inf:
        raise ValueError(f"must be a number above 0; got {text!r}")
    limits = np.finfo(np.float32)
    if not limits.tiny <= value <= limits.max:
        raise ValueError(f"must be in [{limits.tiny:.2g}, {limits.max:.2g}]; got {text!r}")
    return value


def positive_integer(text: str) -> int:
    """Parses an integer of at least 1 and at most 2^31 - 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ValueError(f"must be an integer of at least 1; got {text!r}")
    if value > _MOST:
        raise ValueError(f"must be at most {_MOST}; got {text!r}")
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


SAME = "same"
_OF_ANOTHER_KIND = "by default that of --list, or of an optimizer of another kind its own"
HEAD_OPTIONS = (
    HeadOption(
        "trunk_optimizer",
        one_of(tuple(OPTIMIZERS)),
        f"optimizer of the trunk: {', '.join(OPTIMIZERS)}",
    ),
    HeadOption("trunk_learning_rate", positive_number, f"its learning rate; {_OF_ANOTHER_KIND}"),
    HeadOption(
        "head_optimizer",
        one_of((SAME, *OPTIMIZERS)),
        f"optimizer of the head: one of {', '.join(ROW_OPTIMIZERS)} where a head updates itself; "
        f"elsewhere any, or `{SAME}`: the trunk's trains it, too",
    ),
    HeadOption("head_learning_rate", positive_number, f"its learning rate; {_OF_ANOTHER_KIND}"),
    HeadOption(
        "neighbors",
        one_of(("yes", "no")),
        "whether a row more shows what the trained model and the labels of the nearest training "
        "examples predict together",
    ),
    HeadOption(
        "bias",
        one_of(BIASES),
        "where it begins: at log class frequencies, at -log C (uniform), or at 0 (zeros)",
    ),
    HeadOption(
        "num_sampled", positive_integer, "candidate classes drawn for a batch or an example, S"
    ),
    HeadOption("backward", one_of(("selected", "all")), "classes of the exact softmax's gradient"),
    HeadOption(
        "num_selected",
        positive_integer,
        "classes kept for an example's gradient, S, where that is not of `all`",
    ),
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
_NUMBERS_OF_CLASSES = {"num_sampled", "num_found", "num_selected", "num_words", "top_k"}
# Where an option has this value, the other one counts for nothing. It comes after it, above.
_VOID = {("head_optimizer", SAME): "head_learning_rate", ("backward", "all"): "num_selected"}
_RATES = {
    "trunk_optimizer": "trunk_learning_rate",
    "head_optimizer": "head_learning_rate",
}


def without_unused(options: dict[str, Any]) -> dict[str, Any]:
    """Returns options of a head without those that its other options make void."""
    void = {other for (name, value), other in _VOID.items() if options.get(name) == value}
    return {name: value for name, value in options.items() if name not in void}


def with_rates(
    options: dict[str, Any], defaults: dict[str, Any], chosen: Collection[str]
) -> dict[str, Any]:
    """Returns options of a head with the learning rates that suit optimizers of another kind.

    Args:
        options: The options of a head.
        defaults: Its defaults. A rate among them holds for the optimizers that step as the one
            among them does; another one gets the default of its own class.
        chosen: Names of the options that the user chose.
    """
    rates = {
        rate: inspect.signature(OPTIMIZERS[options[name]]).parameters["learning_rate"].default
        for name, rate in _RATES.items()
        if name in options and rate in options and rate not in chosen
        if SAME not in (options[name], defaults[name])
        if _kind(options[name]) != _kind(defaults[name])
    }
    return {**options, **rates}


def _kind(optimizer: str) -> str:
    return optimizer.removeprefix("row_").removeprefix("fused_")


def fitted(
    options: dict[str, Any],
    defaults: dict[str, Any],
    num_classes: int,
    in_proportion: tuple[str, ...] = (),
    chosen: Collection[str] = (),
) -> dict[str, Any]:
    """Returns options whose defaults go with the number of classes; what the user chose stays.

    Args:
        options: The options of a head.
        defaults: Their defaults, for the shipped data.
        num_classes: C. Numbers of classes among the options are at most C.
        in_proportion: Options that are in proportion to C.
        chosen: Options that the user chose, be it at their defaults. Others that have another
            value than the default count as chosen, too.
    """
    untouched = {
        name: value
        for name, value in options.items()
        if name not in chosen and value == defaults[name]
    }
    at_most = {
        name: min(untouched[name], num_classes) for name in _NUMBERS_OF_CLASSES if name in untouched
    }
    scaled = {
        name: untouched[name] * num_classes / TUNED_CLASSES
        for name in in_proportion
        if name in untouched
    }
    return {**options, **at_most, **scaled}


def at_most_tuned(options: dict[str, Any]) -> dict[str, Any]:
    """Returns options whose numbers of classes are at most `TUNED_CLASSES`."""
    most = {
        name: min(options[name], TUNED_CLASSES) for name in _NUMBERS_OF_CLASSES & options.keys()
    }
    return {**options, **most}


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
        ValueError: One sentence with flag, rule and value; so where a value is given twice for one
            head, or twice for all.
    """
    having = [head for head, options in defaults.items() if option.name in options]
    everywhere: dict[str, Any] = {}
    alone: dict[str, Any] = {}
    for text in ",".join(texts).split(","):
        head, equals, value = text.rpartition("=")
        given = head in alone if equals else bool(everywhere)
        if given:
            whom = f"head {head}" if equals else "all heads"
            raise ValueError(
                f"{option.flag} must be given once for {whom}; got {','.join(texts)!r}"
            )
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
