# SPDX-License-Identifier: Apache-2.0
"""The factored head over workers, as threads. As a program: checks it.

It is compared with one process and its oracle, in float64.
"""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import training
from threads import MOST, SIZE, H, Y, on_all, run_checks

import tfx_largeout as tlo
from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.distribute.global_batch import Parts
from tfx_largeout.distribute.row_routes import RowRoutes
from tfx_largeout.distribute.workers import ALONE
from tfx_largeout.labels import normalize_labels

CLASSES, WIDTH = training.CLASSES, training.WIDTH
RNG = np.random.default_rng(5)
STEPS = 50
LOSSES = {
    "squared_error": (lambda: tlo.losses.SquaredError(0.7), 0.03),
    "spherical_softmax": (lambda: tlo.losses.SphericalSoftmax(0.1), 0.3),
    "taylor_softmax": (tlo.losses.TaylorSoftmax, 0.5),
    "z_loss": (tlo.losses.ZLoss, 0.5),
    "lambda": (lambda: tlo.losses.LambdaSphericalLoss(own_loss), 0.3),
}


@keras.saving.register_keras_serializable(package="threads_of_factored")
def own_loss(statistics):
    """A loss with gradients of both signs with respect to each of a, q and s."""
    targets = statistics.labels.mean(tf.sin(statistics.target_logits))
    squares = tf.sin(statistics.sum_of_squares / 50)
    return squares - targets + 1e-3 * tf.sin(statistics.sum_of_logits)


def batch_of(step):
    """h, labels, weights and mask of a step; of 0 to 3 labels each, and frequent ones shared."""
    rng = np.random.default_rng(100 + step)
    number = 5 + step % 9
    hidden = rng.normal(size=[number, WIDTH]) + 0.5
    labels = rng.zipf(1.4, [number, 3]) % CLASSES
    labels[rng.uniform(size=labels.shape) < 0.3] = -1
    weights = rng.uniform(0, 2, number)
    labels[:, 0] = np.where(labels.max(axis=1) < 0, step % CLASSES, labels[:, 0])
    return hidden, labels, weights, rng.uniform(size=number) < 0.9


def parts_of(batch, workers, step):
    """An uneven part of a batch for each worker; one of them may have none, one is filled up."""
    if workers.alone:
        return batch
    number = len(batch[0])
    ends = np.sort(np.random.default_rng(step).integers(0, number + 1, workers.size - 1))
    start, end = [0, *ends][workers.rank], [*ends, number][workers.rank]
    hidden, labels, weights, mask = (x[start:end] for x in batch)
    if workers.rank == step % workers.size:
        filled = np.full([2, WIDTH], 1e3), np.full([2, 3], 7), [-0.0, -0.0], [True, True]
        parts = zip((hidden, labels, weights, mask), filled, strict=True)
        return tuple(np.concatenate(pair) for pair in parts)
    return hidden, labels, weights, mask


def factored(rate=0.1, dtype="float64", decay=0.0, **arguments):
    weights = {
        "kernel_initializer": keras.initializers.RandomNormal(stddev=0.3, seed=3),
        "bias_initializer": keras.initializers.RandomNormal(stddev=0.1, seed=4),
        "name": "head",
    }
    optimizer = tlo.optimizers.RowSGD(rate, weight_decay=decay)
    return tlo.heads.FactoredHead(CLASSES, optimizer, dtype=dtype, **weights, **arguments)


def step_with(head, loss):
    """A step that is traced once, for batches of any size."""
    shapes = [None, WIDTH], [None, None], [None], [None]
    dtypes = head.state_dtype, tf.int64, head.state_dtype, tf.bool

    @tf.function(autograph=False, input_signature=list(map(tf.TensorSpec, shapes, dtypes)))
    def step(hidden, labels, weights, mask):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            logits = head(hidden, training=True)
            logits._keras_mask = mask
            value = loss(labels, logits, weights)
        gradient = tape.gradient(value, hidden)
        head.take_step()
        return value, gradient

    return step


def tensors(batch, dtype):
    dtypes = dtype, tf.int64, dtype, tf.bool
    return [tf.constant(x, d) for x, d in zip(batch, dtypes, strict=True)]


def trained(workers, make, loss, steps=STEPS):
    """The losses of a run, dL/dh, the state, and how often V was re-anchored."""
    head, anchors, found = make(), 0, {"losses": [], "gradients": []}
    head.build((None, WIDTH))
    step = step_with(head, loss)
    slot = 0
    for number in range(steps):
        batch = parts_of(batch_of(number), workers, number)
        value, gradient = step(*tensors(batch, head.state_dtype))
        found["losses"].append(float(value))
        # A mean over workers is taken of it.
        found["gradients"].append(gradient.numpy() / workers.size)
        anchors += int(head.state.current_slot.numpy()) != slot
        slot = int(head.state.current_slot.numpy())
    return found | {"state": state_of(head), "anchors": anchors}


def state_of(head):
    return {name: getattr(head.state, name).numpy() for name in head.state._fields}


def weights_of(states):
    """W in float64, of the states of all workers."""
    whole = np.zeros([CLASSES, states[0]["v"].shape[1]])
    for rank, state in enumerate(states):
        v, transitions, u, w = (
            state[name].astype(np.float64) for name in ("v", "transitions", "u", "shift")
        )
        rows = np.einsum("cd,cde->ce", v, transitions[state["row_slot"]])
        whole[rank :: len(states)] = rows @ u + w
    return whole


def assert_close(got, want, tolerance, what):
    """Relative to the largest number."""
    scale = tolerance * np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=scale, err_msg=str(what))


def compare_runs(make, loss, sizes, tolerance, what):
    expected = trained(ALONE, make, loss())
    want = weights_of([expected["state"]])
    for size in sizes:
        runs = on_all(lambda w: trained(w, make, loss()), size)
        for run in runs:
            assert isinstance(run, dict), (what, run)
            assert run["losses"] == runs[0]["losses"]
            assert_close(run["losses"], expected["losses"], tolerance, (what, size, "loss"))
            for name, array in run["state"].items():
                if name not in ("v", "row_slot"):
                    np.testing.assert_array_equal(array, runs[0]["state"][name], err_msg=name)
        assert_close(weights_of([run["state"] for run in runs]), want, tolerance, (what, size))
        compare_bookkeeping([run["state"] for run in runs], tolerance)
        for number, gradient in enumerate(expected["gradients"]):
            parts = [
                run["gradients"][number][: len(run["gradients"][number]) - 2 * (r == number % size)]
                for r, run in enumerate(runs)
            ]
            assert_close(np.concatenate(parts), gradient, tolerance, (what, size, number))
    return expected, runs


def compare_bookkeeping(states, tolerance):
    """The derived matrices fit W, and rows are counted."""
    whole, state = weights_of(states), states[0]
    assert_close(state["gram"], whole.T @ whole, 10 * tolerance, "gram")
    assert_close(state["row_sum"], whole.sum(axis=0), 10 * tolerance, "row_sum")
    slots = sum(np.bincount(s["row_slot"], minlength=8) for s in states)
    np.testing.assert_array_equal(state["slot_rows"], slots)


def check_routes():
    """Rows reach the workers with their labels, and the terms sent back are added up."""
    matrix = RNG.normal(size=[CLASSES, WIDTH])
    for number, most in ((40, CLASSES), (12, 4), (3, 1)):  # classes 0 to `most`, some on no worker
        labels = RNG.integers(-1, most, [number, 3])

        def run(workers, number=number, labels=labels):
            shard = ClassShard(workers.rank, workers.size, CLASSES)
            parts = Parts.even(workers, tf.constant(number))
            routes = RowRoutes(workers, shard, tf.constant(labels), parts, "routes")
            rows, places = routes.rows.numpy(), routes.places.numpy()
            fetched = routes.fetch(tf.constant(matrix[workers.rank :: workers.size][rows]), "a")
            own = labels[parts.own.numpy()]
            found = fetched.numpy()[places]
            np.testing.assert_array_equal(found, np.where(own[..., None] < 0, 0, matrix[own]))
            assert len(fetched) == 1 + len(set(own[own >= 0]))
            counts = np.bincount(places.ravel(), minlength=len(fetched)).astype("float64")
            back = np.zeros([CLASSES, 1])
            at = workers.rank + workers.size * rows
            back[at] = routes.push(tf.constant(counts[:, np.newaxis]), "b").numpy()
            return back[:, 0]

        for size in (2, SIZE, MOST):
            runs = on_all(run, size)
            assert all(isinstance(found, np.ndarray) for found in runs), runs
            expected = np.bincount(labels[labels >= 0], minlength=CLASSES)
            np.testing.assert_array_equal(sum(runs), expected)


def check_gradients_of_both_signs():
    loss, rate = LOSSES["lambda"]
    compare_runs(lambda: factored(rate), loss, (SIZE,), 1e-11, "lambda")


@pytest.mark.thorough
def check_losses():
    for name, (loss, rate) in LOSSES.items():
        compare_runs(lambda r=rate: factored(r), loss, (2, MOST), 1e-11, name)


def check_bias_and_decay_in_float32():
    make = lambda: factored(0.3, "float32", decay=0.05, use_bias=True)  # noqa: E731
    compare_runs(make, tlo.losses.TaylorSoftmax, (2,), 1e-5, "float32")


def check_new_anchors(rate=0.065, dtype="float64", tolerance=1e-11):
    """So often that slots are emptied, by |U| |P| and by steps that P has no inverse of."""
    make = lambda: factored(rate, dtype, decay=0.01)  # noqa: E731
    one, runs = compare_runs(make, LOSSES["squared_error"][0], (2,), tolerance, rate)
    assert min(one["anchors"], runs[0]["anchors"]) > 5
    assert len(set(runs[0]["state"]["row_slot"])) > 2


@pytest.mark.thorough
def check_new_anchors_in_float32():
    check_new_anchors(0.05, "float32", 1e-5)


def check_stabilization():
    """With a U that is made more ill-conditioned."""
    for method in ("svd", "power_iteration"):

        def run(workers, method=method):
            head = factored(stabilization=method)
            head.build((None, WIDTH))
            u = np.diag(np.geomspace(1e-4, 1e4, WIDTH))
            state = head.state
            state.u.assign(u)
            state.v.assign(state.v.numpy() @ np.linalg.inv(u))
            before = state_of(head)
            head.after_update(None, None)  # at a count of 0
            after = state_of(head)
            assert np.abs(after["u"] - u).max() > 1
            return before, after

        before, after = zip(*on_all(run, SIZE), strict=True)
        assert_close(weights_of(after), weights_of(before), 1e-10, method)
        for state in after:
            assert np.linalg.cond(state["u"]) <= 1.001e5
            np.testing.assert_array_equal(state["u"], after[0]["u"])


def check_that_what_all_share_is_compared():
    def run(workers):
        head = factored()
        head.build((None, WIDTH))
        if workers.rank:
            head.state.shift.assign(np.eye(WIDTH)[0] * 1e-9)
        head.after_update(None, None)

    for error in on_all(run):
        assert isinstance(error, tf.errors.InvalidArgumentError), error
        assert "weights that all workers share must be the same" in str(error)


def check_statistics_of_a_batch_that_all_have():
    """Also evaluation, the best classes, and functions of all of W."""
    h, labels = tf.constant(H, tf.float64), normalize_labels(Y, CLASSES)

    def run(workers):
        head = factored(use_bias=True)
        head.build((None, WIDTH))
        taken = []
        for _ in range(3):  # so that rows of labels are in other slots than the rest
            with tf.GradientTape() as tape:
                tape.watch(h)
                kind = tlo.statistics.SphericalStatistics
                values = head.statistics(kind, h, labels, training=True)
                loss = tf.reduce_mean(tlo.losses.SquaredError().from_statistics(values))
            taken.append(tape.gradient(loss, h).numpy())
            head.take_step()
        found = {"gradients": np.stack(taken), "drift": np.array(head.drift())}
        found["spherical"] = np.concatenate(
            [x.numpy().ravel() for x in head.statistics(kind, h, labels, training=False)[1:4]]
        )
        exact = head.statistics(tlo.statistics.ExactStatistics, h, labels, training=False)
        found["targets"], found["log_z"] = exact.target_logits, exact.log_partition
        found["ranks"] = exact.target_ranks
        top = head.top_k(h[workers.rank :: workers.size], 90)
        found["scores"], found["ids"] = top.scores, top.ids
        found["mean"] = head.mean_logit(h)
        head.state.gram.assign(head.state.gram * 1.5)
        assert head.drift().gram > 0.4
        head.refresh()
        assert max(head.drift()) < 1e-12
        found["gram"] = head.state.gram.numpy()
        dense = np.cos(np.arange(CLASSES * WIDTH)).reshape(CLASSES, WIDTH)
        head.set_dense_weights(dense, np.arange(CLASSES))
        assert max(head.drift()) < 1e-12
        assert head.condition_number() == 1
        found["logits"] = head.top_k(h[:4], 7).scores
        if not workers.alone:
            found["refused"] = []
            for refused in (head.materialize, head.to_dense):
                with pytest.raises(RuntimeError, match="single process"):
                    refused()
        return found

    expected = run(ALONE)
    for size in (2, SIZE):
        runs = on_all(run, size)
        for rank, found in enumerate(runs):
            assert isinstance(found, dict), found
            assert max(found["drift"]) < 1e-12
            np.testing.assert_array_equal(found["ranks"], expected["ranks"])
            np.testing.assert_array_equal(found["ids"], expected["ids"][rank::size])
            assert_close(found["scores"], expected["scores"][rank::size], 1e-11, "scores")
            for name in ("spherical", "targets", "log_z", "mean", "gram", "logits"):
                assert_close(found[name], expected[name], 1e-11, name)
        gradients = sum(found["gradients"] for found in runs)
        assert_close(gradients, expected["gradients"], 1e-11, "gradients")


def check_a_head_that_is_called_twice():
    """The second gradient is at the weights changed by the first one."""
    loss = tlo.losses.SquaredError()

    def run(workers):
        head = factored(0.02)
        head.build((None, WIDTH))

        @tf.function(autograph=False)
        def step(hidden, labels):
            with tf.GradientTape() as tape:
                tape.watch(hidden)
                value = loss(labels, head(hidden, training=True))
                value += loss(labels, head(hidden[::-1], training=True))
            return value, tape.gradient(value, hidden)

        rows = slice(workers.rank, None, workers.size)
        for _ in range(4):
            with head.without_update():
                before = head.state.v.numpy()
                step(tf.constant(H[rows], tf.float64), tf.constant(Y[rows]))
                np.testing.assert_array_equal(head.state.v.numpy(), before)
            value, gradient = step(tf.constant(H[rows], tf.float64), tf.constant(Y[rows]))
        return float(value), gradient.numpy() / workers.size, state_of(head)

    value, gradient, state = run(ALONE)
    runs = on_all(run)
    for rank, (own_value, own_gradient, _) in enumerate(runs):
        np.testing.assert_allclose(own_value, value, rtol=1e-6)  # reduced in float32
        assert_close(own_gradient, gradient[rank::2], 1e-11, "gradient")
    assert_close(weights_of([run[2] for run in runs]), weights_of([state]), 1e-11, "W")


def check_what_one_worker_has_all_refuse():
    """The state does not change, either."""

    def run(workers, rate, *wrongs):
        head = factored(rate)
        head.build((None, WIDTH))
        step = step_with(head, tlo.losses.SquaredError())
        return [told(workers, head, step, wrong) for wrong in wrongs]

    def told(workers, head, step, wrong):
        before = state_of(head)
        hidden, labels, weights, mask = parts_of(batch_of(4), workers, 4)
        if workers.rank == 1 and wrong == "hidden":
            hidden[-1, 2] = np.nan
        if workers.rank == 1 and wrong == "label":
            labels[-1, 2] = CLASSES
        if workers.rank == 1 and wrong == "weight":
            weights[-1] = np.inf
        try:
            step(*tensors((hidden, labels, weights, mask), "float64"))
        except tf.errors.InvalidArgumentError as error:
            for name, value in state_of(head).items():
                np.testing.assert_array_equal(value, before[name])
            return str(error)
        return "no error"

    expected = {
        "hidden": "hidden, or the sum of squares of its logits, must be finite",
        "label": "each id must be at least 0 and less than",
        "weight": "dL/d. must be finite",
        "rate": "or the step diverges",
    }
    *wrongs, diverges = expected
    for of_values, of_rate in zip(
        on_all(lambda w: run(w, 0.1, *wrongs)), on_all(lambda w: run(w, 1e3, diverges)), strict=True
    ):
        for (wrong, message), error in zip(expected.items(), of_values + of_rate, strict=True):
            assert isinstance(error, str), (wrong, error)
            assert re.search(message, error), (wrong, error)


def check_no_labels_and_one_example():
    """Squared errors without any label; a worker without examples in each step."""

    def run(workers):
        head = factored(0.02)
        head.build((None, WIDTH))
        step = step_with(head, tlo.losses.SquaredError())
        for number in range(3):
            here = (workers.alone or workers.rank == number % workers.size) * 1
            labels = np.full([here, 2], 5 if number == 1 else -1)
            step(*tensors((H[:here], labels, np.ones(here), np.ones(here, bool)), "float64"))
        return state_of(head)

    expected = weights_of([run(ALONE)])
    states = on_all(run)
    assert all(isinstance(state, dict) for state in states), states
    assert_close(weights_of(states), expected, 1e-12, "W")


if __name__ == "__main__":
    run_checks(globals())
