# SPDX-License-Identifier: Apache-2.0
"""TrialModel: a copy of a model that is reset with other settings for each trial."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfx_largeout.callbacks.model_state import ModelState
from tfx_largeout.callbacks.row_means import LOSS, STANDARD_ERROR, RowMeans
from tfx_largeout.compare.root_message import root_message
from tfx_largeout.compare.trial_batches import TrialBatches
from tfx_largeout.heads import Head
from tfx_largeout.heads.base import heads_of
from tfx_largeout.heads.candidate_head import CandidateHead
from tfx_largeout.heads.self_updating import SelfUpdatingHead
from tfx_largeout.keras_internals import made_again, names_forgotten, whole_config

_ROWS = 256  # rows per batch of evaluation


class Settings(NamedTuple):
    """The settings of a trial; None: the model does not have it, or it isn't tried.

    Attributes:
        learning_rate: The rate of the model's optimizer.
        head_learning_rate: The rate of a self-updating head.
        num_sampled: S.
        sampler: The sampler; a copy with S candidates is used.
    """

    learning_rate: float | None
    head_learning_rate: float | None
    num_sampled: int | None
    sampler: Any

    @classmethod
    def of(cls, model: keras.Model) -> Settings:
        """Returns the settings of a model."""
        head = head_of(model)
        sampler = head.sampler if isinstance(head, CandidateHead) else None
        config = {} if sampler is None else sampler.get_config()
        rates = _rate(model.optimizer), _rate(_own_rate(head))
        return cls(*rates, config.get("num_sampled"), sampler)

    def key(self) -> tuple[str, ...]:
        """Returns a key that identifies the settings."""
        rates = (f"{rate:.6g}" if rate else "" for rate in self[:2])
        return (*rates, str(self.num_sampled), type(self.sampler).__name__)

    def row(self) -> dict[str, Any]:
        """Returns the columns of a table."""
        name = None if self.sampler is None else type(self.sampler).__name__
        return {**self._asdict(), "sampler": name}

    def named(self) -> dict[str, Any]:
        """Returns the settings that are not None, with a new sampler."""
        found = {name: value for name, value in self._asdict().items() if value is not None}
        if self.num_sampled is not None:
            config = {**self.sampler.get_config(), "num_sampled": self.num_sampled}
            found["sampler"] = type(self.sampler).from_config(config)
        return found

    def apply(self, model: keras.Model) -> None:
        """Applies them to a model."""
        head: Any = head_of(model)
        if self.learning_rate is not None:
            model.optimizer.learning_rate = self.learning_rate
            if isinstance(head, SelfUpdatingHead):
                head.highest_model_rate.assign(0.0)  # so that the head's rate holds with it
        if self.head_learning_rate is not None:
            _own_rate(head).learning_rate = self.head_learning_rate
        if self.num_sampled is not None:
            head.sampler = self.sampler.resized(self.num_sampled, head.num_classes)
        if model.train_function is not None:
            model.make_train_function(force=True)


class TrialModel:
    """A copy of a compiled model, without its metrics, for trials that start from its state.

    Attributes:
        config: The configuration of the model, for `fresh_model`.
        model: The copy.
        settings: The settings of the model.
        batches: The training batches.

    Raises:
        TypeError: Keras can't rebuild the model from its configuration.
    """

    def __init__(self, model: keras.Model, batches: TrialBatches) -> None:
        self.config, self.model = _copied(model)
        self.model.optimizer.build(self.model.trainable_variables)
        self.model.set_weights(model.get_weights())
        self.head = head_of(self.model)
        self.batches = batches
        own = Settings.of(self.model)
        own_weights = set(map(id, self.head.trainable_weights))
        below = {id(weight) for weight in self.model.trainable_weights} - own_weights
        if isinstance(self.head, SelfUpdatingHead) and not below:
            own = own._replace(learning_rate=None)
        self.settings = own
        self._state = ModelState(self.model, metrics=False)
        self._facts = self._state.facts()
        self._arrays = {name: read().copy() for name, read in self._state.arrays()}
        self._means = RowMeans(self.model)
        self._held_out = batches.held_out.batches(_ROWS)
        self._step: Any = None
        self._traced: tuple[str, ...] | None = None

    def traces(self, settings: Settings) -> bool:
        """Whether a first step with these settings is traced."""
        return self._traced != settings.key()[2:]

    def begin(self, settings: Settings) -> None:
        """Resets the model, with other settings."""
        self._state.restore(self._facts, self._arrays.__getitem__)
        settings.apply(self.model)
        self.model.reset_metrics()
        if not self.traces(settings):
            return
        self._traced = settings.key()[2:]

        def one_step_on_data(batch: Any) -> Any:  # training steps are recognized by this name
            return self.model.train_step(batch)

        self._step = one_step_on_data
        if not self.model.run_eagerly:
            self._step = tf.function(one_step_on_data, reduce_retracing=True, autograph=False)

    def step(self, batch: Any) -> float:
        """Takes a step, and returns the mean loss so far."""
        return float(self._step(batch)[LOSS])

    def score(self) -> tuple[float, float]:
        """Returns the exact loss on the held-out rows, and its standard error."""
        values = self._means.measure(*self._held_out)
        return values[LOSS], values.get(LOSS + STANDARD_ERROR, 0.0)


def head_of(model: keras.Model) -> Head:
    """Returns the only head of a model."""
    (head,) = heads_of(model)
    return head


def fresh_model(config: dict[str, Any]) -> keras.Model:
    """Returns a new compiled model from the `config` of a `TrialModel`."""
    with names_forgotten():
        return made_again(copy.deepcopy(config))


def _copied(model: keras.Model) -> tuple[dict[str, Any], keras.Model]:
    """Returns the configuration of a model, and a new model like it without metrics."""
    try:
        config = whole_config(model)
        bare = copy.deepcopy(config)
        bare["compile_config"] |= {"metrics": None, "weighted_metrics": None}
        return config, fresh_model(bare)
    except Exception as error:
        raise TypeError(
            "model must be one that Keras can make anew from its configuration, as a .keras file "
            f"needs it; got {model.name!r}: {root_message(str(error))}"
        ) from error


def _own_rate(head: Any) -> Any:
    """Returns the optimizer with the learning rate of a self-updating head; None for others."""
    if not isinstance(head, SelfUpdatingHead):
        return None
    return getattr(head, "optimizer", head)


def _rate(owner: Any) -> float | None:
    """Returns a learning rate that can be set, or None."""
    rate = getattr(owner, "_learning_rate", getattr(owner, "learning_rate", None))
    if rate is None or isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return None
    return float(rate)
