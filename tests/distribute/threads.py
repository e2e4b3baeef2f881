# SPDX-License-Identifier: Apache-2.0
"""Workers as threads of one process, each on a separate device. As a program: checks them."""

from __future__ import annotations

import functools
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
import training

import tfx_largeout as tlo
from tfx_largeout.distribute.collectives import ConnectedWorkers, WaitLimit
from tfx_largeout.distribute.data_parallel import mean_over_workers
from tfx_largeout.distribute.global_batch import gather_examples
from tfx_largeout.distribute.meeting import END_OF_FIT as END
from tfx_largeout.distribute.meeting import EVALUATE, TRAIN, agree, meet
from tfx_largeout.distribute.workers import ALONE
from tfx_largeout.heads import over_workers
from tfx_largeout.heads.base import HeadOutput
from tfx_largeout.heads.self_updating import SelfUpdatingHead
from tfx_largeout.labels import normalize_labels
from tfx_largeout.losses import CandidateLoss
from tfx_largeout.losses.candidate_loss import sum_over_candidates

SIZE, MOST = 3, 4
DEVICES = [f"/device:CPU:{rank}" for rank in range(MOST)]
OWN = threading.local()  # the workers of a thread


def on_all(run, size=2, data_replicas=1, **options):
    """Returns what `run(workers)` returns on each worker, or the error that it raises."""
    found = [None] * size

    def work(rank):
        OWN.workers = ConnectedWorkers(size, rank, DEVICES[rank], WaitLimit(30.0), **options)
        if data_replicas > 1:
            OWN.workers.divide(data_replicas)
        with tf.device(DEVICES[rank]):
            try:
                found[rank] = run(OWN.workers)
            except Exception as error:
                found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def check_collectives():
    x = np.array([[1.0, -2.0], [3.0, 5.0]], "float32")
    for rank, got in enumerate(on_all(lambda w: _collectives(w, tf.constant(x[w.rank])))):
        np.testing.assert_array_equal(got["gather"], x)
        np.testing.assert_array_equal(got["sum"], [4, 3])
        np.testing.assert_array_equal(got["first"], x[0])
        np.testing.assert_allclose(got["log_sum_exp"], np.log(np.exp(x).sum(axis=0)), rtol=1e-6)
        np.testing.assert_array_equal(got["sum_of_own"], [4, 3] if rank == 0 else [8, 6])
        # Gradients of c times each, where c is 1 here and 2 on the other worker.
        np.testing.assert_array_equal(got["of_sum"], np.full(2, rank + 1))
        np.testing.assert_array_equal(got["of_share"], np.full(2, 3))
        part = np.exp(x[rank]) / np.exp(x).sum(axis=0)
        np.testing.assert_allclose(got["of_log_sum_exp"], (rank + 1) * part, rtol=1e-6)


@tf.function(autograph=False)
def _collectives(workers, x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        results = {
            "sum": workers.sum(x, "x"),
            "share": workers.share(x, "x"),
            "log_sum_exp": workers.log_sum_exp(x, "x"),
        }
        scaled = {name: (workers.rank + 1) * y for name, y in results.items()}
    results |= {f"of_{name}": tape.gradient(y, x) for name, y in scaled.items()}
    results["gather"] = workers.gather(x, "x")
    results["first"] = workers.first(x, "x")
    total = workers.sum(x, "x")  # the name for the second time
    results["sum_of_own"] = workers.sum_of_own(tf.stack([x, 2 * x]), "x")
    return {**results, "again": total}


def check_examples():
    """Parts of 2 and 3 examples, one of them filled up, with 1 and 2 labels."""
    weights = [np.array([1, 0], "float32"), np.array([2, 0.5, -0.0], "float32")]
    hidden = [np.full([2, 3], 1, "float32"), np.full([3, 3], 2, "float32")]
    labels = [np.array([[4], [-1]]), np.array([[5, 6], [2**40, -1], [9, 9]])]

    @tf.function(autograph=False)
    def step(workers, h, y, w):
        with tf.GradientTape() as tape:
            tape.watch(h)
            mask = tf.constant([True, False, True])[: tf.shape(h)[0]]
            batch = gather_examples(workers, "head", TRAIN, 7, h, y, w, mask)
            factors = (workers.rank + 1.0) * tf.constant([[1.0], [2], [3], [4]])
            loss = tf.reduce_sum(batch.hidden * factors)
        return batch._replace(parts=None), tape.gradient(loss, h)

    found = on_all(lambda w: step(w, *(tf.constant(x[w.rank]) for x in (hidden, labels, weights))))
    for rank, (batch, gradient) in enumerate(found):
        np.testing.assert_array_equal(batch.hidden, [[1] * 3, [1] * 3, [2] * 3, [2] * 3])
        np.testing.assert_array_equal(batch.label_ids, [[4, -1], [-1, -1], [5, 6], [2**40, -1]])
        np.testing.assert_array_equal(batch.weights, [1, 0, 2, 0.5])
        np.testing.assert_array_equal(batch.mask, [True, False, True, False])
        np.testing.assert_array_equal(batch.own, [0, 1] if rank == 0 else [2, 3])
        # The sum over workers, (1 + 2) times the factor, and times R.
        expected = [6, 12] if rank == 0 else [18, 24, 0]
        np.testing.assert_array_equal(gradient, np.outer(expected, np.ones(3)))


def check_empty_parts():
    def step(workers):
        own = tf.ones([2 * workers.rank, 3], tf.float64)
        ids = tf.constant([[3], [4]], tf.int64)[: 2 * workers.rank]
        return gather_examples(workers, "head", EVALUATE, 0, own, ids)._replace(parts=None)

    for rank, batch in enumerate(on_all(step)):
        np.testing.assert_array_equal(batch.hidden, np.ones([2, 3]))
        np.testing.assert_array_equal(batch.label_ids, [[3], [4]])
        np.testing.assert_array_equal(batch.of_this_worker(batch.hidden), np.ones([2 * rank, 3]))


def check_means():
    def step(workers):
        r = workers.rank
        rows = tf.IndexedSlices(tf.ones([2 - r, 2]) * (r + 1), tf.range(1, 3 - r), [5, 2])
        none = tf.IndexedSlices(tf.ones([r, 2]), tf.range(r), [5, 2])
        gradients = [tf.fill([3], r + 1.0), None, rows, tf.fill([], 4.0 * r), none]
        return mean_over_workers(workers, gradients, list("abcde"))

    for vector, nothing, rows, scalar, one in on_all(step):
        np.testing.assert_array_equal(vector, [1.5, 1.5, 1.5])
        assert nothing is None and float(scalar) == 2
        np.testing.assert_array_equal(rows.indices, [1, 2])
        np.testing.assert_array_equal(rows.values, [[1.5, 1.5], [0.5, 0.5]])
        np.testing.assert_array_equal(one.indices, [0])
        np.testing.assert_array_equal(one.values, [[0.5, 0.5]])


def check_bfloat16_on_the_wire():
    """Odd sizes; sums of terms rounded once, and rounded again if all get the sum."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(3, 8195)).astype("float32")  # more than 64 KiB of two others
    hidden = rng.normal(size=(3, 2, 5)).astype("float32")

    def step(workers):
        r = workers.rank
        rows = tf.IndexedSlices(tf.constant(hidden[r]), tf.constant([0, 3]), [5, 5])
        means = mean_over_workers(workers, [tf.constant(vectors[r]), rows], list("ab"))
        found = []
        for phase in (TRAIN, EVALUATE):
            with tf.GradientTape() as tape:
                h = tf.constant(hidden[r])
                tape.watch(h)
                batch = gather_examples(workers, "head", phase, 7, h, tf.constant([[1], [2]]))
                loss = tf.reduce_sum(batch.hidden * tf.reshape(hidden / 3, [6, 5]))
            found.append((batch.hidden, tape.gradient(loss, h)))
        wide = workers.sum_of_gradients(tf.constant(vectors[r], tf.float64), "wide")
        small = workers.sum_of_gradients(tf.constant(vectors[r, :7]), "small")
        return *means, wide, small, *found

    def rounded(x):
        return tf.cast(tf.cast(x, tf.bfloat16), tf.float32).numpy()

    results = on_all(step, 3, wire_dtype=tf.bfloat16)
    mean = rounded(rounded(vectors).sum(axis=0)) / np.float32(3)
    assert not np.array_equal(mean, vectors.sum(axis=0) / np.float32(3))
    for rank, (vector, rows, wide, small, trained, evaluated) in enumerate(results):
        np.testing.assert_allclose(vector, mean, rtol=1e-6)
        np.testing.assert_array_equal(vector, results[0][0])
        np.testing.assert_allclose(rows.values, rounded(hidden).mean(axis=0), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(wide, vectors.astype(float).sum(axis=0), rtol=1e-12)
        np.testing.assert_array_equal(small, vectors[0, :7] + vectors[1, :7] + vectors[2, :7])
        np.testing.assert_array_equal(trained[0], rounded(hidden).reshape(6, 5))
        np.testing.assert_array_equal(evaluated[0], hidden.reshape(6, 5))
        np.testing.assert_allclose(trained[1], 9 * rounded(hidden[rank] / 3), rtol=1e-6)


def check_meetings():
    assert [h.numpy().tolist() for h in on_all(lambda w: meet(w, TRAIN, "a", 3, 0, [w.rank]))] == [
        [[0], [1]]
    ] * 2
    for differ in (
        lambda w: meet(w, TRAIN + w.rank, "a", 3),
        lambda w: meet(w, TRAIN, "ab"[w.rank], 3),
        lambda w: meet(w, TRAIN, "a", 3 + w.rank),
        lambda w: meet(w, TRAIN, "a", 3, w.rank),
        lambda w: agree(w, "ab"[w.rank], {"x": 1}),
    ):
        for error in on_all(differ):
            assert isinstance(error, tf.errors.InvalidArgumentError), error
            assert "workers must all be at the same place" in str(error)
    assert on_all(lambda w: agree(w, "a", {"x": 2**40, "y": ["z"]})) == [None, None]
    in_a_step = tf.function(meet, autograph=False)
    for error in on_all(lambda w: meet(w, END, "a") if w.rank else in_a_step(w, TRAIN, "a")):
        assert isinstance(error, tf.errors.InvalidArgumentError), error
    for error in on_all(lambda w: agree(w, "a", {"x": 2, "y": ["z", w.rank]})):
        assert isinstance(error, ValueError) and "y of a must be the same" in str(error)


H = np.random.default_rng(1).normal(size=[9, training.WIDTH]).astype("float32")
Y = np.array([[n, 7 * n + 1 if n % 2 else -1, n + 3] for n in range(9)])
HEADS = {
    "sampled": lambda: training.sampled(),
    "own": lambda: training.sampled(tlo.samplers.Uniform(9, per_example=True)),
    "bernoulli": lambda: training.sampled(training.SAMPLERS["bernoulli"]()),
    "unigram": lambda: training.sampled(training.SAMPLERS["unigram"]()),
    "one": lambda: training.sampled(tlo.samplers.Uniform(1)),
    "explicit": lambda: training.sampled(explicit_classes=[0, 5, 202]),
}


def step_of(make, loss):
    """A step on a batch that all workers have: the loss, and the changed weights."""
    head = make()
    head.build((None, training.WIDTH))
    h, labels = tf.constant(H), normalize_labels(Y, training.CLASSES)
    with tf.GradientTape() as tape:
        tape.watch(h)
        values = loss.from_statistics(head.statistics(loss.trains_on, h, labels, training=True))
        mean = tf.reduce_mean(values * tf.range(1.0, 10.0))
    gradient = tape.gradient(mean, {"h": h, "weights": head.trainable_variables})
    if isinstance(head, SelfUpdatingHead):
        head.take_step()
    found = {"values": values, "h": gradient["h"], "bias": head.bias, "kernel": head.kernel}
    if isinstance(head, tlo.heads.SampledHead):
        found["anchor"] = gradient["weights"][0]
    if isinstance(head, tlo.heads.DenseHead):
        found |= dict(zip(["kernel_gradient", "bias_gradient"], gradient["weights"], strict=True))
    return {name: tf.convert_to_tensor(value).numpy() for name, value in found.items()}


def compare_steps(make, loss, size):
    expected = step_of(make, loss)
    steps = on_all(lambda workers: step_of(make, loss), size)
    for step in steps:
        assert isinstance(step, dict), step
    for name, of_one in expected.items():
        if name == "h":
            got = sum(step[name] for step in steps)
        elif name in ("values", "anchor"):
            got = steps[0][name]
            for step in steps:
                np.testing.assert_array_equal(step[name], got)
        else:  # by class
            got = np.zeros_like(of_one)
            for rank, step in enumerate(steps):
                got[rank::size] = step[name]
        scale = 2e-6 * max(np.abs(of_one).max(), 1)
        np.testing.assert_allclose(got, of_one, rtol=2e-6, atol=scale, err_msg=name)


class SquaredHinge(CandidateLoss):
    """The one of docs/guides/own_loss.md."""

    sums_over_workers = True

    def from_statistics(self, statistics):
        target = statistics.labels.mean(statistics.true_logits)
        target = statistics.workers.share(target, "target")[:, tf.newaxis]
        error = tf.nn.relu(1 - target + statistics.candidate_logits) ** 2
        return sum_over_candidates(statistics, statistics.negatives, error)


def check_losses_of_candidates(size=SIZE):
    for loss in (SquaredHinge, *training.LOSSES.values()):
        compare_steps(HEADS["sampled"], loss(), size)


@pytest.mark.thorough
def check_losses_of_two_workers():
    check_losses_of_candidates(2)


def check_labels_that_are_left_out(size=2):
    """Rows without labels, an ignored class and class weights: as in one process."""
    labels = np.where(np.arange(9)[:, np.newaxis] % 4 == 1, -100, Y)
    labels[2] = -1
    weights = np.linspace(0.5, 2, training.CLASSES)
    options = {"ignore_class": -100, "class_weights": weights}
    kinds = {
        HEADS["sampled"]: tlo.losses.ComplementarySum(**options),
        training.factored: tlo.losses.TaylorSoftmax(**options),
    }
    compare_losses(kinds, labels, size)


@pytest.mark.thorough
def check_labels_that_three_workers_leave_out():
    check_labels_that_are_left_out(SIZE)


def check_soft_labels(size=2):
    """Ids with probabilities, some examples without: as in one process."""
    p = (np.random.default_rng(3).random(Y.shape) / 3).astype("float32")
    labels = np.where(np.arange(9)[:, np.newaxis] == 4, -1, Y), p
    kinds = {
        HEADS["sampled"]: tlo.losses.SampledSoftmax(),
        training.exact: tlo.losses.SoftmaxCrossentropy(remaining="spread"),
    }
    if size == SIZE:
        kinds[training.factored] = tlo.losses.TaylorSoftmax()
        kinds[functools.partial(training.factored)] = tlo.losses.SquaredError()
    compare_losses(kinds, labels, size)


@pytest.mark.thorough
def check_soft_labels_of_three_workers():
    check_soft_labels(SIZE)


def compare_losses(kinds, labels, size):
    """The loss of a step and the exact one of each worker's examples, as in one process."""

    def run(workers, make, loss):
        head, metric = make(), tlo.metrics.ExactLoss()
        head.build((None, training.WIDTH))
        part = slice(workers.rank, None, workers.size)

        @tf.function(autograph=False)
        def ask():
            h, y = (
                tf.constant(H[part]),
                tf.nest.map_structure(lambda x: tf.constant(x[part]), labels),
            )
            logits = head(h, training=False)
            exact = loss(y, logits)
            metric.update_state(y, logits)
            return loss(y, head(h, training=True)), exact, metric.result()

        return [value.numpy() for value in ask()]

    for make, loss in kinds.items():
        of_kind = functools.partial(run, make=make, loss=loss)
        expected = of_kind(ALONE)
        assert np.isfinite(expected).all()
        for got in on_all(of_kind, size):
            np.testing.assert_allclose(got, expected, rtol=1e-6)


def check_samplers():
    for make in HEADS.values():
        compare_steps(make, tlo.losses.BlackOut(), SIZE)


@pytest.mark.thorough
def check_samplers_with_another_loss():
    for make in HEADS.values():
        compare_steps(make, tlo.losses.ComplementarySum(), SIZE)


def check_heads_of_all_classes():
    for loss in (tlo.losses.SoftmaxCrossentropy(), tlo.losses.SquaredError()):
        compare_steps(training.dense, loss, SIZE)
    for options in (("float32", None), ("float32", 20), ("bfloat16", training.CLASSES)):
        compare_exact_softmaxes(*options, smoothing=0.2)


@pytest.mark.thorough
def check_exact_softmaxes():
    for products in ("float32", "bfloat16"):
        for num_selected in (None, 20, training.CLASSES):
            for smoothing in (0, 0.2):
                compare_exact_softmaxes(products, num_selected, smoothing)


def compare_exact_softmaxes(products, num_selected, smoothing):
    loss = tlo.losses.SoftmaxCrossentropy(label_smoothing=smoothing)
    compare_steps(lambda: training.exact(products, num_selected), loss, SIZE)


def softmax_gradients(smoothing):
    """The statistics of W and h in float64, and the weights of the examples."""
    head = training.exact()
    head.build((None, training.WIDTH))
    kernel, bias = (x.numpy().astype(np.float64) for x in (head.kernel, head.bias))
    logits = H @ kernel.T + bias
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    targets = np.stack([np.bincount(y[y >= 0], minlength=training.CLASSES) for y in Y])
    targets = targets / targets.sum(axis=1, keepdims=True)
    targets = (1 - smoothing) * targets + smoothing / training.CLASSES
    gradient = p / p.sum(axis=1, keepdims=True) - targets
    gradient *= np.arange(1, 10)[:, np.newaxis] / 9
    return gradient.T @ H, gradient @ kernel


@pytest.mark.thorough
def check_selected_gradients_have_no_bias():
    """The mean over many draws equals the softmax: random sums, within 4 standard errors."""
    draws, rng = 400, np.random.default_rng(2)

    def run(workers):
        head = training.exact("float32", 10, tlo.optimizers.RowSGD(1.0))
        head.build((None, training.WIDTH))
        start, bias = head.kernel.numpy(), head.bias.numpy()
        h, labels = tf.constant(H), normalize_labels(Y, head.num_classes)

        @tf.function(autograph=False)
        def step():
            head.kernel.assign(start)
            head.bias.assign(bias)
            with tf.GradientTape() as tape:
                tape.watch(h)
                kind = loss.trains_on
                values = loss.from_statistics(head.statistics(kind, h, labels, training=True))
                mean = tf.reduce_mean(values * tf.range(1.0, 10.0))
            gradient = tape.gradient(mean, h)
            head.take_step()
            with tf.control_dependencies([gradient]):
                return start - head.kernel.value.read_value(), gradient

        found = [step() for _ in range(draws)]
        return [np.stack(part) for part in zip(*found, strict=True)]

    for smoothing in (0, 0.2):
        loss = tlo.losses.SoftmaxCrossentropy(label_smoothing=smoothing)
        (even, of_h), (odd, more_of_h) = on_all(run)
        kernel = np.zeros((draws, training.CLASSES, training.WIDTH))
        kernel[:, 0::2], kernel[:, 1::2] = even, odd
        for got, want in zip((kernel, of_h + more_of_h), softmax_gradients(smoothing), strict=True):
            sums = rng.normal(size=(30, want.size)) @ (got - want).reshape(draws, -1).T
            deviations = sums.mean(axis=1) / (sums.std(axis=1) / np.sqrt(draws))
            assert 0.5 < deviations.std() < 1.5 and np.abs(deviations).max() < 4, deviations


def check_exact_statistics_with_ties():
    def run(workers):
        head = training.dense()
        head.build((None, training.WIDTH))
        places = np.arange(workers.rank, training.CLASSES, workers.size)
        head.kernel.assign(np.round(np.sin(np.outer(places % 50, np.arange(training.WIDTH)))))
        head.bias.assign(np.zeros(len(places)))
        h, labels = tf.constant(np.round(H)), normalize_labels(Y, training.CLASSES)
        exact = head.statistics(tlo.statistics.ExactStatistics, h, labels, training=False)
        top = head.top_k(h[workers.rank :: workers.size], 90)
        return exact, top

    (expected,), (best,) = [[x] for x in run(ALONE)]
    for rank, (exact, top) in enumerate(on_all(run, SIZE)):
        np.testing.assert_array_equal(exact.target_ranks, expected.target_ranks)
        np.testing.assert_allclose(exact.log_partition, expected.log_partition, rtol=1e-6)
        np.testing.assert_array_equal(exact.target_logits, expected.target_logits)
        np.testing.assert_array_equal(top.ids, best.ids[rank::SIZE])
        np.testing.assert_array_equal(top.scores, best.scores[rank::SIZE])


def check_top_k_of_classes_that_may_be_found():
    rng = np.random.default_rng(5)
    seen = rng.integers(-1, training.CLASSES, [len(H), 30])
    category, categories = np.arange(len(H)) % 3, np.arange(training.CLASSES) % 3
    few = range(1, training.CLASSES, 7)

    def run(workers):
        head = training.dense()
        head.build((None, training.WIDTH))
        own = slice(workers.rank, None, workers.size)
        h, exclude = tf.constant(H[own]), seen[own, : 30 - workers.rank]
        layers = tlo.TopK(head, 9), tlo.TopK(head, 60, allow=few, categories=categories)
        return *layers[0](h, exclude=exclude), *layers[1](h, exclude, category[own])

    for rank in range(SIZE):
        seen[rank::SIZE, 30 - rank :] = -1
    expected = run(ALONE)
    assert np.any(expected[3] < 0)
    for rank, found in enumerate(on_all(run, SIZE)):
        for own, of_all in zip(found, expected, strict=True):
            np.testing.assert_allclose(own, of_all[rank::SIZE], rtol=1e-6)


def check_filtered_ranks():
    seen = np.random.default_rng(5).integers(-1, training.CLASSES, [len(H), 30])
    seen[::3, 0] = np.asarray(Y).reshape(len(H), -1)[::3, 0]

    def run(workers, make):
        head = make()
        head.build((None, training.WIDTH))
        own = slice(workers.rank, None, workers.size)
        output = HeadOutput(head, tf.constant(H[own]), training=False, exclude=seen[own])
        whole, labels, *_ = output.over_workers(Y[own], None, None, filtered=True)
        return whole.filtered_ranks(labels).target_ranks

    for make in (training.dense, training.factored):
        expected = run(ALONE, make)
        for found in on_all(lambda w, m=make: run(w, m), SIZE):
            of_rank = [expected[rank::SIZE] for rank in range(SIZE)]
            np.testing.assert_array_equal(found[:, :3], np.concatenate(of_rank))


def check_dense_weights():
    dense = np.cos(np.arange(training.CLASSES * training.WIDTH)).reshape(training.CLASSES, -1)

    def run(workers):
        head = training.sampled()
        head.build((None, training.WIDTH))
        head.set_dense_weights(dense, np.arange(training.CLASSES))
        with pytest.raises(RuntimeError, match="materialize and to_dense of SampledHead"):
            head.to_dense()
        with pytest.raises(ValueError, match="check sum of kernel and bias"):
            head.set_dense_weights(dense + workers.rank, np.arange(training.CLASSES))
        return head.kernel.numpy(), head.bias.numpy()

    for rank, (kernel, bias) in enumerate(on_all(run, SIZE)):
        np.testing.assert_array_equal(kernel, dense[rank::SIZE].astype("float32"))
        np.testing.assert_array_equal(bias, np.arange(training.CLASSES)[rank::SIZE])


def run_checks(checks):
    """Runs those functions of a module that check something, and prints their names.

    As a program with the argument `thorough`: those with that mark, else those without.
    """
    thorough = sys.argv[1:] == ["thorough"]
    over_workers.current = lambda: getattr(OWN, "workers", ALONE)
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * MOST)
    for name, check in list(checks.items()):
        if name.startswith("check_") and hasattr(check, "pytestmark") == thorough:
            check()
            print(name)


if __name__ == "__main__":
    run_checks(globals())
