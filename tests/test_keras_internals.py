# SPDX-License-Identifier: Apache-2.0
"""The private names of Keras work as assumed; a failing test has the name that is missing."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.keras_internals import (
    OptimizerHooks,
    applying_optimizer,
    asks_for_shapes,
    averaged_function,
    batches_applied,
    begin_at_epoch,
    calling_model,
    calls_forgotten,
    flat_layers,
    global_seed,
    graph_of,
    h5_dataset,
    in_train_step,
    is_functional,
    loss_given,
    losses_and_outputs,
    made_by,
    mask_of,
    means_told,
    metric_names,
    metrics_given,
    names_forgotten,
    operations_of,
    optimizer_like,
    options_of_function,
    outputs_with,
    own_weights,
    pass_batches,
    rebuilt,
    seed_generators,
    set_global_seed,
    set_mask,
    variable_behind,
    was_called,
    weighted_losses,
    without_autocast,
)

SEEN = {}


class Look(keras.layers.Dense):
    """Records what is known during its call, and during an optimizer's step on its kernel."""

    def __init__(self):
        super().__init__(1, kernel_constraint=LookAtOptimizer())

    def call(self, inputs):
        SEEN["model"] = calling_model(self)
        SEEN["in train step"] = in_train_step()
        return super().call(inputs)


class LookAtOptimizer(keras.constraints.Constraint):
    def __call__(self, kernel):
        SEEN["optimizer"] = applying_optimizer()
        return kernel


def fitted(optimizer, **arguments):
    layer = Look()
    model = keras.Sequential([keras.Input((2,)), keras.Sequential([layer])])
    model.compile(optimizer, "mse", jit_compile=False, **arguments)
    SEEN.clear()
    model.fit(np.ones((6, 2)), np.ones(6), batch_size=1, verbose=0)
    return model, layer


@pytest.mark.parametrize("steps", [1, 3])
def test_a_layer_finds_the_model_that_calls_it_and_its_training_step(steps):
    model, layer = fitted("sgd", steps_per_execution=steps)
    assert SEEN["model"] is model, "Layer._get_call_context().entry_layer"
    assert SEEN["in train step"], "the function of a step is not called one_step_on_data"
    model.predict(np.ones((2, 2)), verbose=0)
    assert not SEEN["in train step"]
    layer(tf.ones((1, 2)))
    assert SEEN["model"] is None
    assert applying_optimizer() is None
    assert not in_train_step()


def test_a_layer_knows_when_keras_asks_for_shapes():
    seen = []

    class Plain(keras.layers.Layer):
        def call(self, inputs):
            seen.append(asks_for_shapes())
            return inputs

    model = keras.Sequential([keras.Input((2,)), Plain()])
    assert all(seen) and seen, "in_symbolic_scope: it is another one when a model is made"
    seen.clear()
    model(tf.ones((1, 2)))
    assert seen == [False]


def test_a_file_of_keras_gets_a_data_set_that_is_filled_later(tmp_path):
    made = []

    class Filled(keras.layers.Dense):
        def save_own_variables(self, store):
            super().save_own_variables(store)
            made.append(h5_dataset(store, "later", (2, 3), np.float32))
            made[-1][:] = 5

        def load_own_variables(self, store):
            made.append(np.asarray(store["later"]))

    model = keras.Sequential([keras.Input((2,)), Filled(3)])
    model.save_weights(tmp_path / "later.weights.h5")
    model.load_weights(tmp_path / "later.weights.h5")
    assert made[-1].tolist() == [[5, 5, 5]] * 2, "H5IOStore: _h5_entry_group is another one"
    assert h5_dataset({}, "later", (2, 3), np.float32) is None


def test_an_optimizer_like_another_one():
    like = optimizer_like(keras.optimizers.SGD(lambda: 0.1, nesterov=True), {"nesterov", "other"})
    assert float(like.learning_rate) == 0.5, "_learning_rate"
    assert like.nesterov is False


def test_a_constraint_finds_the_optimizer_that_steps():
    inner = keras.optimizers.SGD(0.1)
    fitted(keras.optimizers.LossScaleOptimizer(inner))
    assert SEEN["optimizer"] is inner, "name_scope_stack: an optimizer's apply has no scope"


def test_batches_of_an_optimizer_that_accumulates():
    model, _ = fitted(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4))
    assert int(batches_applied(model.optimizer)) == 6
    assert int(model.optimizer.iterations) == 1


def test_layers_weights_and_seeds():
    dropout = keras.layers.Dropout(0.5)
    inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), dropout])
    model = keras.Sequential([inner, keras.layers.BatchNormalization()])
    model.build((None, 2))
    assert set(flat_layers(model)) >= {model, inner, dropout, model.layers[1]}, "_flatten_layers"
    assert len(own_weights(model.layers[1])) == 4 and not own_weights(inner), "_trainable_variables"
    assert seed_generators(dropout) == [dropout.seed_generator], "_seed_generators"


def test_a_variable_has_its_own_dtype_behind_it():
    variable = keras.Variable(np.ones(2, "float32"))
    assert variable_behind(variable).dtype == tf.float32, "Variable._value"
    layer = keras.layers.Dense(1, dtype="mixed_bfloat16")
    layer.build((None, 1))
    seen = []
    layer.call = lambda x: seen.append(layer.kernel.value.dtype) or x
    layer(tf.ones((1, 1)))
    with without_autocast():
        seen.append(layer.kernel.value.dtype)
    assert seen == [tf.bfloat16, tf.float32], "AutocastScope"


def test_graphs_of_layers():
    inputs = keras.Input((2,))
    dense, other = keras.layers.Dense(2), keras.layers.Dense(2)
    outputs = dense(dense(inputs))
    model = keras.Model(inputs, outputs)
    assert is_functional(model) and is_functional(keras.Sequential()) and not is_functional(dense)
    sequential = keras.Sequential([keras.Input((2,)), dense])
    assert graph_of(sequential).outputs, "Sequential._functional"
    assert operations_of(model).count(dense) == 2, "_nodes_by_depth"
    layer, got = made_by(outputs)
    assert layer is dense and len(got) == 1, "_keras_history, _inbound_nodes"
    with calls_forgotten([dense, model.layers[0]]):
        swapped = outputs_with(model, lambda layer: other if layer is dense else layer)
        assert made_by(swapped)[0] is other, "_run_through_graph"
        dense(inputs)
    assert made_by(dense(inputs))[0] is dense


def test_masks_and_metrics():
    tensor, mask = tf.ones((1, 2)), tf.constant([[True, False]])
    assert mask_of(tensor) is None
    set_mask(tensor, mask)
    assert keras.layers.Masking().compute_mask(tensor) is not None
    assert mask_of(tensor) is mask
    masked = keras.layers.Masking()(tf.ones((1, 2, 3)))
    assert mask_of(masked) is not None, "_keras_mask"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    assert metrics_given(model) is None and loss_given(model) is None
    model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["mse"])
    compiled, given = metrics_given(model)
    assert given == ["mae", "mse"], "_compile_metrics, _user_metrics"
    compiled_loss, losses = loss_given(model)
    assert losses == ["mse"] and callable(compiled_loss.call), "_compile_loss, _user_loss"
    compiled.build(tf.ones((1, 2)), tf.ones((1, 2)))
    metric = keras.metrics.SparseTopKCategoricalAccuracy(3)
    function = keras.metrics.sparse_top_k_categorical_accuracy
    assert averaged_function(metric) is function, "MeanMetricWrapper._fn"
    assert options_of_function(metric)["k"] == 3, "MeanMetricWrapper._fn_kwargs"
    assert averaged_function(keras.metrics.Mean()) is None


def test_losses_and_the_outputs_that_they_read():
    inputs = keras.Input((2,))
    model = keras.Model(inputs, [keras.layers.Dense(1, name=name)(inputs) for name in "ba"])
    model.compile("sgd", {"a": "mse", "b": keras.losses.MeanAbsoluteError()})
    compiled, outputs = model._compile_loss, [tf.ones((1, 1)), tf.zeros((1, 1))]
    compiled([tf.ones((1, 1))] * 2, outputs)
    losses, read = zip(*losses_and_outputs(compiled, outputs), strict=True)
    assert [loss.name for loss in losses] == ["mean_absolute_error", "mse"], "_flat_losses"
    assert read[0] is outputs[0] and read[1] is outputs[1], "_y_pred_build_structure"


def test_means_are_told_by_name():
    told, model = {}, keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    loss = keras.losses.MeanSquaredError()
    model.compile("sgd", loss, metrics=["mae"], weighted_metrics=["mae"], loss_weights=3.0)
    assert weighted_losses(model) == []
    x, y, weights = np.ones((3, 2)), np.arange(3.0), np.array([0.0, 1.0, 2.0])

    def of_loss(values, counts):
        told["loss"] = np.asarray(values), np.asarray(counts)

    def of_metric(metric, values, counts):
        told[id(metric)] = np.asarray(values), np.asarray(counts)

    before = keras.metrics.Mean.update_state
    with means_told(of_loss, of_metric):
        model.test_step((tf.constant(x), tf.constant(y[:, None]), tf.constant(weights)))
    assert keras.metrics.Mean.update_state is before
    error = (model(x).numpy() - y[:, None])[:, 0]
    values, counts = told["loss"]
    np.testing.assert_allclose(values, weights * error**2, rtol=1e-6)  # reduce_weighted_values
    np.testing.assert_array_equal(counts, np.ones(3))
    assert [weight for _, weight in weighted_losses(model)] == [3.0], "_compile_loss, _flat_losses"
    named = {name: told.get(id(metric)) for metric, name in metric_names(model)}
    assert list(named) == ["loss", "mae", "weighted_mae"], "_compile_metrics"
    np.testing.assert_allclose(named["mae"][0], np.abs(error), rtol=1e-6)
    values, counts = named["weighted_mae"]
    np.testing.assert_allclose(values, weights * np.abs(error), rtol=1e-6)
    np.testing.assert_array_equal(counts, weights)


def test_fit_begins_at_an_epoch():
    class Begin(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            begin_at_epoch(self.model, 2)

        def on_train_end(self, logs=None):
            begin_at_epoch(self.model, None)

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((2, 2)), np.ones(2)
    assert model.fit(x, y, epochs=3, verbose=0, callbacks=[Begin()]).epoch == [2], "_initial_epoch"
    assert model.fit(x, y, verbose=0).epoch == [0]


def test_fit_counts_batches_that_it_does_not_train():
    class Pass(keras.callbacks.Callback):
        seen = ()

        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 0:
                pass_batches(self.model, 2, lambda iterator: True, {"loss": -1.0})

        def on_train_batch_end(self, batch, logs=None):
            self.seen = (*self.seen, (batch, logs["loss"] == -1))

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y, passed = np.ones((3, 2)), np.ones(3), Pass()
    model.fit(x, y, batch_size=1, verbose=0, callbacks=[passed])
    assert passed.seen == ((0, True), (1, True), (2, False)), "train_function"
    assert int(model.optimizer.iterations) == 1
    step = model.train_function
    pass_batches(model, 2, lambda iterator: False, {})
    model.fit(x, y, batch_size=1, verbose=0)
    assert int(model.optimizer.iterations) == 4 and model.train_function is step


def test_hooks_of_an_optimizer():
    class Hooked(OptimizerHooks, keras.optimizers.SGD):
        steps = 0

        def before_clipping(self, gradients):
            return [gradient * 2 for gradient in gradients]

        def after_step(self):
            self.steps += 1

    for clip, step in ((None, 1.0), (10.0, 2.0)):
        optimizer, variable = Hooked(1.0, clipvalue=clip), keras.Variable(np.zeros(1))
        optimizer.apply([tf.ones(1)], [variable])
        assert float(variable[0]) == -step, "_clip_gradients"
        assert optimizer.steps == 1, "_backend_update_step"


def test_a_model_is_made_again_and_shared_layers_stay_shared():
    shared = keras.layers.Dense(3, name="shared")
    inputs = keras.Input([4, 3])
    model = keras.Model(inputs, keras.layers.TimeDistributed(shared)(shared(inputs)))
    changed = rebuilt(model, lambda config: {**config, "config": {**config["config"], "name": "x"}})
    assert changed.name == "x"
    layers = [layer for layer in flat_layers(changed) if layer.name == "shared"]
    assert len(set(map(id, layers))) == 1 and layers[0] is not shared


def test_a_layer_knows_whether_it_was_called():
    layer = keras.layers.Dense(1)
    layer.build([None, 2])
    assert not was_called(layer), "_called"
    keras.Sequential([keras.Input([2]), layer])
    assert was_called(layer)


def test_seeds_and_names_of_the_process():
    keras.utils.set_random_seed(1)
    keras.random.normal([1])
    seed = global_seed()
    first = np.asarray(keras.random.normal([3]))
    set_global_seed(seed)
    np.testing.assert_array_equal(keras.random.normal([3]), first, err_msg="global_seed_generator")
    with names_forgotten():
        name = keras.layers.Dense(1).name
    assert keras.layers.Dense(1).name == name, "object_name_uids"


@pytest.mark.all_cases
@pytest.mark.parametrize("scales", [False, True])
def test_an_optimizer_assigns_the_gradient_of_a_weight_that_is_overwritten(scales):
    layer = keras.layers.Dense(1)
    layer.build([None, 2])
    layer.bias.overwrite_with_gradient = True
    optimizer = keras.optimizers.SGD(0.5)
    if scales:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0)
    optimizer.apply([tf.ones([2, 1]), tf.constant([3.0])], layer.trainable_variables)
    np.testing.assert_array_equal(layer.bias, [3.0])  # also by the optimizer that scales
