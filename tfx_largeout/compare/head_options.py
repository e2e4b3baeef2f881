# SPDX-License-Identifier: Apache-2.0
"""The options of heads. Each is a flag of the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import keras

from tfx_largeout import indexes, optimizers
from tfx_largeout.compare.settings import flag_of, positive_integer, positive_number

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
HASH_FAMILIES = {
    "dwta": indexes.DWTAHash,
    "inner_product": indexes.SimHash,
    "simhash": indexes.SimHash,
    "wta": indexes.WTAHash,
}
SAMPLERS = ("bernoulli", "log_uniform", "uniform", "unigram")


def one_of(choices: Collection[str]) -> Callable[[str], str]:
    """Returns a parser of one of `choices`."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}; got {text!r}")
        return text

    return parse


class HeadOption(NamedTuple):
    """An option of heads; `parse` raises ValueError with the rule and the text."""

    name: str
    parse: Callable[[str], Any]
    help: str


SAME = "same"
_OF_ANOTHER_KIND = "default: see --list; for another kind of optimizer, that optimizer's default"
HEAD_OPTIONS = (
    HeadOption(
        "trunk_optimizer",
        one_of(OPTIMIZERS),
        f"optimizer of the hidden layers: {', '.join(OPTIMIZERS)}",
    ),
    HeadOption("trunk_learning_rate", positive_number, f"its learning rate; {_OF_ANOTHER_KIND}"),
    HeadOption(
        "head_optimizer",
        one_of((SAME, *OPTIMIZERS)),
        f"optimizer of the head: {', '.join(ROW_OPTIMIZERS)} for heads that update themselves; "
        f"for others any, or `{SAME}` as the hidden layers",
    ),
    HeadOption("head_learning_rate", positive_number, f"its learning rate; {_OF_ANOTHER_KIND}"),
    HeadOption(
        "neighbors",
        one_of(("yes", "no")),
        "whether one more row shows the trained model combined with the labels of the nearest "
        "training examples",
    ),
    HeadOption(
        "bias",
        one_of(BIASES),
        "initial bias: log class frequencies, -log C (uniform), or 0 (zeros)",
    ),
    HeadOption(
        "num_sampled", positive_integer, "candidate classes drawn per batch or per example, S"
    ),
    HeadOption(
        "backward", one_of(("selected", "all")), "classes with a gradient in the exact softmax"
    ),
    HeadOption(
        "num_selected",
        positive_integer,
        "classes kept per example for the gradient, S, unless backward is `all`",
    ),
    HeadOption(
        "products", one_of(("float32", "bfloat16")), "dtype of the products of the exact softmax"
    ),
    HeadOption("num_true", positive_integer, "labels per example that a step uses"),
    HeadOption(
        "sampler", one_of(SAMPLERS), f"distribution of the candidates: {', '.join(SAMPLERS)}"
    ),
    HeadOption("num_found", positive_integer, "candidate classes taken from an index"),
    HeadOption(
        "candidates", one_of(("per-example", "shared")), "per-example, or shared by the batch"
    ),
    HeadOption("num_words", positive_integer, "words of each of two codebooks, Q, at most C"),
    HeadOption("top_k", positive_integer, "number of candidates with the greatest logits"),
    HeadOption(
        "hash_family",
        one_of(HASH_FAMILIES),
        f"hash functions of the index: {', '.join(HASH_FAMILIES)} (SimHash of inner products)",
    ),
    HeadOption("hashes_per_table", positive_integer, "hash functions per table"),
    HeadOption("num_tables", positive_integer, "hash tables"),
)

TUNED_CLASSES = 139_536  # of the shipped data, for which defaults were tuned
_NUMBERS_OF_CLASSES = {"num_sampled", "num_found", "num_selected", "num_words", "top_k"}
# If an option has this value, the other option, defined above, is ignored.
_VOID = {("head_optimizer", SAME): "head_learning_rate", ("backward", "all"): "num_selected"}
_RATES = {f"{part}_optimizer": f"{part}_learning_rate" for part in ("trunk", "head")}


def without_unused(options: dict[str, Any]) -> dict[str, Any]:
    """Returns options of a head, without options that others disable."""
    void = {other for (name, value), other in _VOID.items() if options.get(name) == value}
    return {name: value for name, value in options.items() if name not in void}


def with_rates(
    options: dict[str, Any], defaults: dict[str, Any], chosen: Collection[str]
) -> dict[str, Any]:
    """Returns options of a head with learning rates for the chosen optimizers.

    A default rate is for optimizers with the same kind of step as the default one; another
    optimizer gets the default rate of its class, unless a rate was chosen.
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
    """Returns options with defaults adapted to the number of classes; chosen ones stay.

    Numbers of classes become at most C; options that are `in_proportion` to C are scaled. An option
    with another value than the default counts as chosen, too.
    """
    untouched = {
        name: value
        for name, value in options.items()
        if name not in chosen and value == defaults[name]
    }
    scaled = {
        name: value * num_classes / TUNED_CLASSES
        for name, value in untouched.items()
        if name in in_proportion
    }
    return {**options, **at_most(untouched, num_classes), **scaled}


def at_most(options: dict[str, Any], num_classes: int) -> dict[str, Any]:
    """Returns options whose numbers of classes are at most `num_classes`."""
    most = {name: min(options[name], num_classes) for name in _NUMBERS_OF_CLASSES & options.keys()}
    return {**options, **most}


def choose_options(
    option: HeadOption, texts: list[str], defaults: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Reads the texts of one option: `VALUE` for all heads, or `HEAD=VALUE`.

    Args:
        option: The option.
        texts: The texts of the flag, in order; each may have several values, separated by commas.
        defaults: The chosen heads, and the default options of each.

    Returns:
        `{option name: value}` for each head with a value; a value for one head has priority.

    Raises:
        ValueError: A value is wrong, or given twice; one sentence with flag, rule and value.
    """
    flag = flag_of(option.name)
    having = [head for head, options in defaults.items() if option.name in options]
    everywhere: dict[str, Any] = {}
    alone: dict[str, Any] = {}
    for text in ",".join(texts).split(","):
        head, equals, value = text.rpartition("=")
        if head in alone if equals else everywhere:
            whom = f"head {head}" if equals else "all heads"
            raise ValueError(f"{flag} must be given once for {whom}; got {','.join(texts)!r}")
        if equals and head not in having:
            rule = f"must be for a chosen head that has this option ({', '.join(having) or 'none'})"
            raise ValueError(f"{flag} {rule}; got {text!r}")
        if not having:
            raise ValueError(f"{flag} must be an option of a chosen head; got {text!r}")
        try:
            parsed = option.parse(value)
        except ValueError as error:
            raise ValueError(f"{flag} {error}") from None
        if equals:
            alone[head] = parsed
        else:
            everywhere.update(dict.fromkeys(having, parsed))
    return {head: {option.name: value} for head, value in {**everywhere, **alone}.items()}
