# SPDX-License-Identifier: Apache-2.0
"""compare_heads: a user's model with one head after the other."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from tfx_largeout import heads as head_classes
from tfx_largeout import initializers, losses, optimizers, samplers
from tfx_largeout.compare.compare_models import (
    check_name,
    compare_built,
    length_settings,
)
from tfx_largeout.compare.comparison import Comparison
from tfx_largeout.compare.head_builders import HeadBuilder
from tfx_largeout.compare.head_options import fitted
from tfx_largeout.compare.head_table import HeadRow, head_and_loss, head_row
from tfx_largeout.compare.job import say
from tfx_largeout.compare.own_data import own_data, require_compiled
from tfx_largeout.heads.keras_losses_and_metrics import (
    ignored_by,
    ignored_by_loss_of,
    no_class_below_0,
)
from tfx_largeout.models.replace_output import (
    graph_layers,
    output_layers,
    swap_layers,
    swaps_forgotten,
)

DENSE = "dense"
DEFAULTS = (DENSE, "SampledHead", "ExactSoftmaxHead", "TFSampledSoftmaxHead")
_MOST_SAMPLED, _DEFAULT_RATE = 1000, 1e-3
# Creates head and loss from the seed; None: the model unchanged.
_Make = Callable[[int], tuple[Any, Any]]


def compare_heads(
    model: keras.Model,
    train: Any,
    validation: Any,
    heads: Mapping[str, Any] | Sequence[str] | None = None,
    *,
    seconds: float | None = None,
    epochs: float | None = None,
    evaluations: int = 6,
    batch_size: int | None = None,
    seeds: int = 1,
    output: str | Path | None = None,
    overwrite: bool = False,
) -> Comparison:
    """Trains a model with one head after the other instead of its last Dense layer.

    ```python
    comparison = tlo.compare_heads(model, (x, y), (x, y), epochs=1)
    ```

    Each head gets a copy of the model, which does not change: the hidden layers have its weights;
    every output layer, also the Dense layer, is newly initialized. Each copy has a new optimizer
    like `model`'s; a self-updating head has a separate one. Its loss ignores the class that
    `model`'s loss ignores. Then it calls `compare_models`.

    Args:
        model: A compiled model for `replace_output`, with class ids as labels.
        train: As `compare_models`.
        validation: Likewise.
        heads: By name, a function of `num_classes` that returns `(head, loss)`, or only a head, for
            its usual loss; or a name. Names are the default ones: `dense`, the model unchanged,
            `SampledHead` (1,000 candidates by frequency), `ExactSoftmaxHead` and
            `TFSampledSoftmaxHead`, with the learning rate of the model's optimizer and biases
            initialized to the log frequencies of the classes; and the heads of `tfx-largeout
            compare`, with its settings. Or a list of names. Default: the default ones.
        seconds: As `compare_models`.
        epochs: Likewise.
        evaluations: Likewise.
        batch_size: Likewise.
        seeds: Likewise; the hidden layers have the same weights for each seed.
        output: Likewise.
        overwrite: Likewise.

    Returns:
        As `compare_models`.

    Raises:
        TypeError: As `compare_models` and `replace_output`.
        ValueError: Likewise; or a name is not the name of a head.
    """
    require_compiled(model)
    dense, _ = output_layers(model)
    data, test = own_data(train, validation, batch_size)
    settings = length_settings(seconds, epochs, evaluations, seeds)
    ignored = ignored_by_loss_of(model)

    @functools.cache
    def counts() -> Any:
        say("Counting the labels.")
        return data.label_counts(dense.units, ignored)

    makers = _makers(model, DEFAULTS if heads is None else heads, dense.units, counts)
    if any(make is not None for make in makers.values()):
        for labels in (data, test):
            labels.check_ids(dense.units, ignored)
    builders = {name: functools.partial(_with_head, model, make) for name, make in makers.items()}
    return compare_built(builders, data, test, settings, output, overwrite)


def _makers(
    model: keras.Model, heads: Any, num_classes: int, counts: Callable[[], Any]
) -> dict[str, _Make | None]:
    if isinstance(heads, Mapping):
        named = dict(heads)
    elif isinstance(heads, Sequence) and not isinstance(heads, str):
        named = {name: name for name in heads}
    else:
        raise TypeError(f"heads must be a dict, or a list of names; got {heads!r}")
    if not named:
        raise ValueError("heads must have at least one; got none")
    makers: dict[str, _Make | None] = {}
    for name, head in named.items():
        check_name("heads", name)
        if head == DENSE:
            makers[name] = None
        elif head in DEFAULTS:
            makers[name] = _default_makers(model, num_classes, counts())[head]
        elif isinstance(head, str):
            makers[name] = functools.partial(_of_table, _row(head), num_classes, counts())
        elif callable(head) and not isinstance(head, head_classes.Head):
            makers[name] = functools.partial(_of_user, name, head, num_classes)
        else:
            raise TypeError(
                "heads must be functions of num_classes, or names; got "
                f"{head!r} as {name!r}: a head serves one model alone"
            )
    return makers


def _default_makers(model: keras.Model, num_classes: int, counts: Any) -> dict[str, _Make | None]:
    number = min(_MOST_SAMPLED, num_classes)
    bias = functools.partial(initializers.LogFrequency, counts)

    def sampled(seed: int) -> Any:
        sampler = samplers.Unigram(counts, number)
        rows = _row_optimizer(model.optimizer)
        head = head_classes.SampledHead(
            num_classes, sampler, rows, bias_initializer=bias(), seed=seed
        )
        return head, losses.ComplementarySum()

    def exact(seed: int) -> Any:
        rows = _row_optimizer(model.optimizer)
        head = head_classes.ExactSoftmaxHead(num_classes, rows, bias_initializer=bias(), seed=seed)
        return head, losses.SoftmaxCrossentropy()

    def tensorflow(seed: int) -> Any:
        options = {"unigrams": (counts + 1.0).tolist()}
        head = head_classes.TFSampledSoftmaxHead(
            num_classes,
            number,
            sampler="fixed_unigram",
            sampler_options=options,
            bias_initializer=bias(),
            seed=seed,
        )
        return head, losses.TFCandidateSamplingLoss()

    return dict(zip(DEFAULTS, (None, sampled, exact, tensorflow), strict=True))


def _row_optimizer(optimizer: Any) -> Any:
    """Returns the row optimizer that corresponds to a model's optimizer."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    kind = type(optimizer).__name__.lower()
    rate = getattr(optimizer, "learning_rate", None)
    kinds = {"sgd": optimizers.RowSGD, "adagrad": optimizers.RowAdagrad}
    own = next((own for name, own in kinds.items() if name in kind), optimizers.RowAdam)
    return own(_DEFAULT_RATE if rate is None else float(rate))


def _row(name: str) -> HeadRow:
    try:
        return head_row(name)
    except ValueError as error:
        raise ValueError(f"the name of a head, if not one of {list(DEFAULTS)}, {error}") from None


def _of_table(row: HeadRow, num_classes: int, counts: Any, seed: int) -> tuple[Any, Any]:
    options = row.default_options
    options = fitted(options, options, num_classes, row.in_proportion)
    return row.make(HeadBuilder(num_classes, counts, seed, options))


def _of_user(name: str, make: Callable[[int], Any], num_classes: int, seed: int) -> tuple[Any, Any]:
    return head_and_loss(name, make(num_classes))


def _ignoring(ignored: int | None, loss: Any) -> Any:
    """Returns the loss of a head with the ignored class of the model's loss."""
    if isinstance(loss, losses.HeadLoss) and loss.ignore_class is None and ignored is not None:
        loss = copy.copy(loss)
        loss.ignore_class = ignored
    found = ignored_by(loss)
    if no_class_below_0(found) != no_class_below_0(ignored):
        raise ValueError(
            "the loss of each head must have the ignore_class of the model's loss, as evaluation "
            f"leaves this class out, {ignored}; got {found}"
        )
    return loss


def _with_head(model: keras.Model, make: _Make | None, seed: int) -> keras.Model:
    """Returns a compiled copy of a model that ends in a head."""
    dense, activations = output_layers(model)
    copies = {
        layer: type(layer).from_config(layer.get_config())
        for layer in graph_layers(model)
        if layer.variables
    }
    swapped, loss = dict(copies), model.loss
    options: dict[str, Any] = {"jit_compile": model.jit_compile}
    if make is not None:
        swapped[dense], loss = make(seed)
        loss = _ignoring(ignored_by_loss_of(model), loss)
        found = swapped[dense].num_classes
        if found != dense.units:
            raise ValueError(
                f"head must have as many classes as the Dense layer that it replaces, "
                f"{dense.units}; got num_classes={found}"
            )
        swapped |= dict.fromkeys(activations)
        options = {}
    with swaps_forgotten(model):
        result = swap_layers(model, swapped)
    for layer, copied in copies.items():
        if layer is not dense:
            copied.set_weights(layer.get_weights())
    result.compile(
        type(model.optimizer).from_config(model.optimizer.get_config()),
        loss=loss,
        run_eagerly=model.run_eagerly,
        steps_per_execution=model.steps_per_execution,
        **options,
    )
    return result
