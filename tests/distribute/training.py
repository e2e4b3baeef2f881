# SPDX-License-Identifier: Apache-2.0
"""Trains models of each kind; the same program for one process and for a worker.

As a program: python training.py FOLDER some|every|replicated DATA_REPLICAS, with TF_CONFIG.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo

CLASSES, WIDTH, WORDS, LENGTH, EXAMPLES, BATCH = 203, 8, 50, 4, 114, 24
RNG = np.random.default_rng(0)
X = RNG.integers(0, WORDS, [EXAMPLES, LENGTH]).astype("int32")
COUNTS = RNG.integers(1, 4, EXAMPLES)
FLAT = RNG.zipf(1.3, COUNTS.sum()) % CLASSES
WEIGHTS = np.where(RNG.uniform(size=EXAMPLES) < 0.1, 0, RNG.uniform(0.5, 1.5, EXAMPLES))
# Drawn here, once: what a run draws would depend on the runs before it in its process.
NEXT = np.where(RNG.uniform(size=X.shape) < 0.2, 5, X).astype("int64")


def batches(examples: int = EXAMPLES, weighted: bool = True) -> tf.data.Dataset:
    """The last of five batches has 18 examples; with 113 examples, an odd number."""
    labels = tf.RaggedTensor.from_row_lengths(FLAT.astype("int64"), COUNTS)
    data = (X, labels, WEIGHTS.astype("float32")) if weighted else (X, labels)
    return tf.data.Dataset.from_tensor_slices(data).take(examples).batch(BATCH)


def weights():
    return {
        "kernel_initializer": keras.initializers.GlorotUniform(seed=3),
        "bias_initializer": keras.initializers.RandomNormal(stddev=0.1, seed=4),
        "name": "head",
    }


def sampled(sampler=None, optimizer=None, **arguments):
    return tlo.heads.SampledHead(
        CLASSES,
        sampler or tlo.samplers.LogUniform(40),
        optimizer or tlo.optimizers.RowAdagrad(0.1),
        seed=7,
        **weights(),
        **arguments,
    )


def wta():
    return tlo.indexes.HashIndex(tlo.indexes.WTAHash(4), hashes_per_table=2, num_tables=10)


def inner_product(**arguments):
    return tlo.indexes.HashIndex(
        tlo.indexes.SimHash(),
        hashes_per_table=4,
        num_tables=10,
        similarity="inner_product",
        first_period=5,
        **arguments,
    )


# Samplers that look at W, each with its index. Their results are never cut off.
LOOKING = {
    "shared": lambda: (tlo.samplers.LSHEmbedding(30), inner_product()),
    "shared_wta": lambda: (tlo.samplers.LSHEmbedding(30, tlo.samplers.Uniform(20)), wta()),
    "own": lambda: (
        tlo.samplers.LSHEmbedding(CLASSES, tlo.samplers.LogUniform(20), per_example=True),
        inner_product(max_drift=0.05),
    ),
    "corrected": lambda: (
        tlo.samplers.LSHEmbedding(CLASSES, per_example=True, corrected=True),
        inner_product(),
    ),
    "label": lambda: (tlo.samplers.LSHLabel(30, tlo.samplers.Uniform(20)), wta()),
    "own_label": lambda: (tlo.samplers.LSHLabel(CLASSES, per_example=True), wta()),
    "wta_top_k": lambda: (tlo.samplers.WTATopK(9, CLASSES), wta()),
    "exact_top_k": lambda: (tlo.samplers.ExactTopK(120), None),
    "unused": lambda: (tlo.samplers.Uniform(20), wta()),
}


def looking(name, **arguments):
    sampler, index = LOOKING[name]()
    return sampled(sampler, index=index, **arguments)


def dense():
    return tlo.heads.DenseHead(CLASSES, **weights())


def exact(products="float32", num_selected=None, optimizer=None):
    """With the gradients of all classes, or of some that are selected."""
    return tlo.heads.ExactSoftmaxHead(
        CLASSES,
        optimizer or tlo.optimizers.RowAdagrad(0.1),
        num_selected,
        backward="all" if num_selected is None else "selected",
        products=products,
        seed=1,
        **weights(),
    )


def factored(rate=0.3, decay=0.0, **arguments):
    """In float64, where rounding of W is far below the tolerances."""
    optimizer = tlo.optimizers.RowSGD(rate, weight_decay=decay)
    return tlo.heads.FactoredHead(CLASSES, optimizer, dtype="float64", **weights(), **arguments)


def rows_of(head):
    """W and b of the classes of this worker; b None without one."""
    if not isinstance(head, tlo.heads.FactoredHead):
        return head.kernel.numpy(), None if head.bias is None else head.bias.numpy()
    head.settle()
    rows = head.state.v.numpy() @ head.state.u.numpy() + head.state.shift.numpy()
    return rows[:, : head.width], rows[:, head.width] if head.use_bias else None


def compiled(head, loss, optimizer=None, below="words", **arguments):
    keras.utils.set_random_seed(1 + tlo.distribute.current().rank)  # worker 0's start counts
    dense = keras.layers.Dense(WIDTH, activation="tanh", kernel_regularizer="l2", name="dense")
    words = keras.layers.Embedding(WORDS, 6, mask_zero=below == "positions", name="words")
    layers = {
        "words": [words, keras.layers.GlobalAveragePooling1D()],
        "positions": [words],
        "numbers": [keras.layers.Rescaling(1 / WORDS)],
    }
    layers = [*layers[below], dense]
    model = keras.Sequential([keras.Input([LENGTH], dtype="int32"), *layers, head])
    optimizer = optimizer or keras.optimizers.SGD(0.2, momentum=0.9)
    model.compile(tlo.distribute.DataParallel(optimizer, check_every=3), loss, **arguments)
    return model


class Steps(keras.callbacks.Callback):
    """The loss of each step."""

    def __init__(self):
        self.losses = []

    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


def trained(model, epochs=1, data=None):
    """Returns the results of a run: losses, weights, with W and b by class of this worker."""
    data = tlo.distribute.shard(batches()) if data is None else data
    steps = Steps()
    model.fit(data, epochs=epochs, verbose=0, callbacks=[steps])
    head = model.layers[-1]
    trunk = [w.numpy().ravel() for layer in model.layers[:-1] for w in layer.trainable_weights]
    kernel, bias = rows_of(head)
    result = {"losses": np.array(steps.losses), "trunk": np.concatenate(trunk)}
    result |= {"kernel": kernel} if bias is None else {"kernel": kernel, "bias": bias}
    if isinstance(head, tlo.heads.SampledHead):
        result["anchor"] = head.gradient_anchor.numpy()
        result["slots"] = head.slots_of(head.kernel)[0].numpy()
    return result


LOSSES = {
    "complementary_sum": tlo.losses.ComplementarySum,
    "sampled_softmax": tlo.losses.SampledSoftmax,
    "sampled_logistic": tlo.losses.SampledLogistic,
    "negative_sampling": tlo.losses.NegativeSampling,
    "gbce": tlo.losses.GeneralizedBCE,
    "negative_sum": lambda: tlo.losses.NegativeSampling("sum"),
    "noise_contrastive": lambda: tlo.losses.NoiseContrastive("learned"),
    "noise_without_hits": lambda: tlo.losses.NoiseContrastive(5.0, remove_accidental_hits=True),
    "ranking": tlo.losses.Ranking,
    "hinge": lambda: tlo.losses.Ranking(1.0, "hinge"),
    "black_out": tlo.losses.BlackOut,
    "importance_sampling": tlo.losses.ImportanceSampling,
    "active_set": tlo.losses.ActiveSetSoftmax,
}
COUNTS_OF_CLASSES = 1 + np.arange(CLASSES)[::-1]
SAMPLERS = {
    "bernoulli": lambda: tlo.samplers.Bernoulli(COUNTS_OF_CLASSES, 30),
    "unigram": lambda: tlo.samplers.Unigram(COUNTS_OF_CLASSES, 30),
}


def ranks(model) -> np.ndarray:
    """The ranks of all labels, batch after batch."""
    kind = tlo.statistics.ExactStatistics

    @tf.function(autograph=False)
    def of_batch(x, y, weight):
        output = model(x, training=False)._tfx_largeout_head_output
        output, labels, _, _ = output.over_workers(y, weight, None)
        return output.statistics(kind, labels).target_ranks

    found = [of_batch(*batch).numpy() for batch in tlo.distribute.shard(batches())]
    return np.concatenate([np.pad(r, [[0, 0], [0, 4 - r.shape[1]]]) for r in found])


def evaluated(model, data) -> tuple[np.ndarray, np.ndarray]:
    """Returns the metrics and the loss."""
    values = model.evaluate(tlo.distribute.shard(data), return_dict=True, verbose=0)
    loss = values.pop("loss")
    return np.array(list(values.values())), np.array(loss)


def long_run() -> dict[str, np.ndarray]:
    """50 steps, then everything that evaluates."""
    metrics = [
        tlo.metrics.PrecisionAtK(1),
        tlo.metrics.ExactLoss(),
        tlo.metrics.MeanReciprocalRank(),
    ]
    weighted = [tlo.metrics.RecallAtK(5), tlo.metrics.ExactLoss(name="weighted_loss")]
    model = compiled(
        sampled(), tlo.losses.ComplementarySum(), metrics=metrics, weighted_metrics=weighted
    )
    result = trained(model, epochs=10)
    result["collectives"] = np.array(collectives(model))
    result["evaluate"], result["evaluate_loss"] = evaluated(model, batches())
    result["odd"], result["odd_loss"] = evaluated(model, batches(113, weighted=False))
    result["ranks"] = ranks(model)
    top = tlo.top_k_model(model, 5, activation="softmax")
    result["scores"], result["ids"] = top.predict(X, verbose=0, batch_size=50)
    own = tlo.distribute.shard(tf.data.Dataset.from_tensor_slices(X).batch(BATCH))
    result["own_ids"] = top.predict(own, verbose=0)[1]
    h = keras.Model(model.inputs, model.layers[-2].output).predict(X, verbose=0)
    layer = tlo.TopK(model.layers[-1], CLASSES)  # more than each worker has
    result["all_ids"] = layer(tf.constant(h[:3]))[1].numpy()
    return result


def with_callbacks() -> dict[str, np.ndarray]:
    """No epoch is better by 10 than the first one: the rate falls, and its weights come back."""
    model = compiled(sampled(), tlo.losses.ComplementarySum(), metrics=[tlo.metrics.ExactLoss()])
    best = {"monitor": "val_exact_loss", "mode": "min", "min_delta": 10}
    stop = keras.callbacks.EarlyStopping(**best, patience=3, restore_best_weights=True)
    slower = keras.callbacks.ReduceLROnPlateau(**best, patience=1, factor=0.5)
    history = model.fit(
        tlo.distribute.shard(batches()),
        validation_data=tlo.distribute.shard(batches(113)),
        epochs=9,
        verbose=0,
        callbacks=[slower, stop],
    ).history
    head, dense = model.layers[-1], model.layers[-2]
    return {
        "losses": np.array([*history["val_exact_loss"], *history["learning_rate"]]),
        "trunk": dense.kernel.numpy(),
        "kernel": head.kernel.numpy(),
        "bias": head.bias.numpy(),
    }


def with_sampled_validation() -> dict[str, np.ndarray]:
    """All workers give the same rows; the last of three batches has 12 of 50."""
    metrics = [tlo.metrics.PrecisionAtK(1), tlo.metrics.Perplexity()]
    model = compiled(sampled(), tlo.losses.ComplementarySum(), weighted_metrics=metrics)
    labels = tf.RaggedTensor.from_row_lengths(FLAT.astype("int64"), COUNTS)
    weights = WEIGHTS.astype("float32")
    options = {"rows": 50, "every": 2, "batch_size": 19}
    validation = tlo.callbacks.SampledValidation(X, labels, weights, **options)
    data = tlo.distribute.shard(batches())
    model.fit(data, epochs=2, verbose=0, callbacks=[validation])
    head, dense = model.layers[-1], model.layers[-2]
    return {
        "losses": np.array([list(values.values()) for values in validation.history]),
        "trunk": dense.kernel.numpy(),
        "kernel": head.kernel.numpy(),
        "bias": head.bias.numpy(),
    }


def some_runs():
    """Yields the name of a run, and its results."""
    yield "long", long_run()
    own = tlo.samplers.Uniform(20, per_example=True)
    yield "own_candidates", trained(compiled(sampled(own), tlo.losses.BlackOut()))
    adam = keras.optimizers.Adam(0.01, clipvalue=0.1)
    yield "dense_adam", trained(compiled(dense(), tlo.losses.SquaredError(), adam, "numbers"))
    smoothed = tlo.losses.SoftmaxCrossentropy(label_smoothing=0.2)
    yield "selected", trained(compiled(exact(num_selected=20), smoothed))
    yield "factored", factored_run()
    active_set = tlo.losses.ActiveSetSoftmax()
    yield "lsh_embedding", trained(compiled(looking("shared"), active_set), epochs=10)
    # With a small epsilon Adam makes large steps of gradients that are nothing but rounding.
    adam = tlo.optimizers.RowAdam(0.05, epsilon=1e-3)
    yield (
        "row_adam",
        trained(
            compiled(
                sampled(optimizer=adam, explicit_classes=[3, 8]),
                tlo.losses.ComplementarySum(),
                tlo.optimizers.RowAdam(0.05, epsilon=1e-3),
            )
        ),
    )
    yield "positions", positions_run()
    yield "with_callbacks", with_callbacks()
    yield "with_sampled_validation", with_sampled_validation()
    yield "stochastic_rounding", stochastic_run()
    model = compiled(sampled(), tlo.losses.ComplementarySum(), steps_per_execution=2)
    model.fit(tlo.distribute.shard(batches()), verbose=0)
    yield "two_steps", {"kernel": model.layers[-1].kernel.numpy()}


def every_run():
    """The same, and other losses and options of the heads."""
    yield from some_runs()
    learned = tlo.losses.NoiseContrastive("learned")
    yield "learned", trained(compiled(sampled(), learned))
    fused = tlo.optimizers.FusedAdam(0.05, epsilon=1e-3)
    yield "fused_adam", trained(compiled(sampled(), tlo.losses.ComplementarySum(), fused))
    rmsprop = tlo.optimizers.RowRMSprop(0.05, epsilon=1e-6)
    yield "row_rmsprop", trained(compiled(sampled(), tlo.losses.ComplementarySum(), rmsprop))
    row_wise = sampled(optimizer=tlo.optimizers.RowAdagrad(0.1, row_wise=True))
    yield "row_wise", trained(compiled(row_wise, tlo.losses.ComplementarySum()))
    crossentropy = tlo.losses.SoftmaxCrossentropy
    yield "exact_softmax", trained(compiled(exact(), crossentropy()))
    yield "exact_smoothed", trained(compiled(exact(), crossentropy(label_smoothing=0.2)))
    yield "all_selected", trained(compiled(exact(num_selected=CLASSES), crossentropy()), epochs=10)
    yield "dense_smoothed", trained(compiled(dense(), crossentropy(label_smoothing=0.2)))
    schedule = keras.optimizers.schedules.InverseTimeDecay(0.5, 2, 0.3)
    yield "taylor", trained(compiled(factored(schedule), tlo.losses.TaylorSoftmax()), epochs=10)
    active_set = tlo.losses.ActiveSetSoftmax()
    yield "wta_top_k", trained(compiled(looking("wta_top_k"), active_set), epochs=10)


def replicated_runs():
    """Runs of `every` whose draws do not depend on places in the batch of a group."""
    yield "long", long_run()
    crossentropy = tlo.losses.SoftmaxCrossentropy
    yield "exact_smoothed", trained(compiled(exact(), crossentropy(label_smoothing=0.2)))
    yield "all_selected", trained(compiled(exact(num_selected=CLASSES), crossentropy()), epochs=10)
    parts = keras.optimizers.SGD(0.2, gradient_accumulation_steps=2)
    yield "accumulated", trained(compiled(sampled(), tlo.losses.BlackOut(), parts))
    yield "positions", positions_run()
    yield "with_callbacks", with_callbacks()
    yield "with_sampled_validation", with_sampled_validation()


RUNS = {"some": some_runs, "every": every_run, "replicated": replicated_runs}


def stochastic_run() -> dict[str, np.ndarray]:
    """Five steps in bfloat16."""
    optimizer = tlo.optimizers.RowAdagrad(0.1, row_wise=True, stochastic_rounding=True, seed=2)
    head = sampled(optimizer=optimizer, dtype="bfloat16")
    model = compiled(head, tlo.losses.ComplementarySum())
    model.fit(tlo.distribute.shard(batches()), verbose=0)
    return {"rounded": tf.cast(head.kernel, tf.float32).numpy()}


def positions_run() -> dict[str, np.ndarray]:
    """A label each position."""
    positions = tf.data.Dataset.from_tensor_slices((X % 7, NEXT)).batch(BATCH)
    metrics = [
        "accuracy",
        keras.metrics.SparseTopKCategoricalAccuracy(20),
        keras.metrics.SparseCategoricalCrossentropy(from_logits=True),
    ]
    model = compiled(sampled(), tlo.losses.ComplementarySum(), below="positions", metrics=metrics)
    result = trained(model, data=tlo.distribute.shard(positions))
    result["metrics"], _ = evaluated(model, positions)
    return result


def factored_run() -> dict[str, np.ndarray]:
    """50 steps with new anchors, evaluation, and the best classes."""
    metrics = [tlo.metrics.PrecisionAtK(1), tlo.metrics.ExactLoss()]
    during = [tlo.metrics.RecallAtK(5, during_training=True)]
    head = factored(decay=0.01, use_bias=True)
    model = compiled(
        head, tlo.losses.SquaredError(), weighted_metrics=during, metrics=metrics, below="numbers"
    )
    result = trained(model, epochs=10)
    transitions = head.state.transitions.numpy()
    assert not np.array_equal(transitions, [np.eye(WIDTH + 1)] * len(transitions))
    result["evaluate"], result["evaluate_loss"] = evaluated(model, batches())
    result["ranks"] = ranks(model)
    result["drift"] = np.array(head.drift())
    top = tlo.top_k_model(model, 5)
    result["scores"], result["ids"] = top.predict(X, verbose=0, batch_size=50)
    if not head.workers.alone:
        result["collectives"] = np.array(collectives(model))
    return result


def collectives(model) -> int:
    """The number of collectives in a training step, without the check every few steps."""
    batch = next(iter(tlo.distribute.shard(batches())))
    graph = tf.function(model.train_step).get_concrete_function(batch).graph
    return sum("Collective" in op.type for op in graph.get_operations())


def save(folder: Path, number: str, rank: int) -> None:
    for name, values in RUNS[number]():
        np.savez(folder / f"{name}-{rank}.npz", **values)
        print("ended", name, flush=True)


if __name__ == "__main__":
    folder, runs, groups = sys.argv[1:]
    workers = tlo.distribute.connect(timeout=180, data_replicas=int(groups))
    assert (os.environ["CUDA_VISIBLE_DEVICES"] == "-1") == (
        not tf.config.list_logical_devices("GPU")
    )
    save(Path(folder), runs, workers.rank)
