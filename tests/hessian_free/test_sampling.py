# SPDX-License-Identifier: Apache-2.0
"""Sample schedules: sizes, caps, and inequality 5 against trying all sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hessian_free.models import classes_data, curvature_of, dense_model, sparse_softmax
from oracles import hessian_free as oracle

from tfx_largeout.hessian_free import FixedSample, GeometricSample, VarianceSample
from tfx_largeout.hessian_free.examples import Examples
from tfx_largeout.hessian_free.flat_parameters import WeightPenalty
from tfx_largeout.hessian_free.objective import Objective
from tfx_largeout.hessian_free.samples import GradientNoise
from tfx_largeout.hessian_free.worker import LocalWorker


@pytest.mark.parametrize(
    ("size", "population", "expected"),
    [(10, 100, 10), (10, 5, 5), (0.1, 1000, 100), (0.1, 1001, 101), (1.0, 7, 7), (0.001, 9, 1)],
)
def test_fixed_sizes_are_counts_or_shares(size, population, expected):
    assert [FixedSample(size).size(i, population) for i in (0, 5)] == [expected] * 2


def test_geometric_sizes_grow_by_the_factor_up_to_the_cap():
    schedule = GeometricSample(100, 1.3, most=0.5)
    sizes = [schedule.size(i, 2000) for i in range(12)]
    assert sizes[0] == 100
    assert sizes == [min(1000, math.ceil(100 * 1.3**i - 1e-9)) for i in range(12)]
    assert schedule.size(10**6, 2000) == 1000
    assert GeometricSample(0.5, 1.0).size(10**6, 10) == 5
    assert GeometricSample(30, 2).size(0, 20) == 20


@pytest.mark.parametrize("theta", [0.05, 0.25, 1.0])
def test_variance_sample_is_the_smallest_that_holds(theta):
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(200, 5)) + rng.normal(size=5) / 2
    noise = GradientNoise(
        float((gradients.mean(axis=0) ** 2).sum()), float(gradients.var(axis=0, ddof=1).sum())
    )
    schedule = VarianceSample(1, theta)
    schedule.observe(noise, 200)
    assert schedule.size(3, 200) == oracle.sample_size(gradients, theta)


def test_variance_sizes_never_shrink_and_keep_the_cap():
    schedule = VarianceSample(10, 0.5, most=0.5)
    assert schedule.size(0, 100) == 10
    schedule.observe(GradientNoise(1.0, 1.0), 100)
    assert schedule.size(1, 100) == 10  # large enough: 1 / 10 * 0.9 <= 0.25
    schedule.observe(GradientNoise(1.0, 10.0), 100)
    grown = schedule.size(2, 100)
    assert 20 < grown < 50
    schedule.observe(GradientNoise(1e6, 1.0), 100)
    assert schedule.size(3, 100) == grown
    for noise in (GradientNoise(0.0, 1.0), GradientNoise(1.0, math.nan), GradientNoise(0.0, 0.0)):
        schedule.observe(noise, 100)
    assert schedule.size(4, 100) == 50
    other = VarianceSample(10, 0.5)
    other.restore({name: np.array(value) for name, value in schedule.state().items()})
    assert other.size(0, 100) == 100


def test_noise_of_the_objective_is_the_variance_of_single_gradients():
    """Micro-batches of one example give the sample variance exactly."""
    model = dense_model(sparse_softmax())
    x, y = classes_data(20)
    curvature, _ = curvature_of(model, x, y)
    workers = (LocalWorker(curvature, Examples(x, y)),) * 2
    objective = Objective(curvature.parameters, *workers, WeightPenalty(model.trainable_variables))
    gradient = objective.gradient(np.arange(20), with_noise=True)
    single = oracle.gradients("softmax", model.get_weights(), x, y)
    assert gradient.noise.variance == pytest.approx(single.var(axis=0, ddof=1).sum(), rel=1e-4)
    assert gradient.noise.squared_norm == pytest.approx((single.mean(axis=0) ** 2).sum(), rel=1e-4)
    np.testing.assert_allclose(gradient.vector, single.mean(axis=0), rtol=1e-4, atol=1e-6)
    assert objective.gradient(np.arange(20), with_noise=False).noise is None
    assert objective.gradient(np.arange(1), with_noise=True).noise is None


def test_noise_of_micro_batches_is_unbiased():
    model = dense_model(sparse_softmax())
    x, y = classes_data(240)
    curvature, _ = curvature_of(model, x, y)
    variances = []
    for seed in range(30):
        order = np.random.default_rng(seed).permutation(240)
        worker = LocalWorker(curvature, Examples(x[order], y[order]))
        objective = Objective(
            curvature.parameters, worker, worker, WeightPenalty(model.trainable_variables)
        )
        variances.append(objective.gradient(np.arange(240), with_noise=True).noise.variance)
    single = oracle.gradients("softmax", model.get_weights(), x, y)
    expected = single.var(axis=0, ddof=1).sum()
    error = np.std(variances) / len(variances) ** 0.5
    assert abs(np.mean(variances) - expected) < 4 * error


@pytest.mark.parametrize("size", [0, -1, 1.5, 0.0, True, None, "all", math.nan])
def test_sizes_are_checked(size):
    for make in (FixedSample, VarianceSample, lambda initial: GeometricSample(initial, 1.2)):
        with pytest.raises(ValueError, match=r"must be a number of examples .* or a share of all"):
            make(size)


def test_factors_are_checked():
    with pytest.raises(ValueError, match=r"growth must be a finite number at least 1; got 0\.9"):
        GeometricSample(10, 0.9)
    with pytest.raises(ValueError, match="theta must be a finite number above 0; got 0"):
        VarianceSample(10, 0)
    with pytest.raises(ValueError, match="most must be a number of examples"):
        GeometricSample(10, 1.1, most=0)
