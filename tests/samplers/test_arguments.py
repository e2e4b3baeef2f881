# SPDX-License-Identifier: Apache-2.0
"""Bad arguments: each error names the argument, the rule and the value."""

from __future__ import annotations

import numpy as np
import pytest
from samplers.drawing import draw

from tfx_largeout import samplers

FIVE = [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: samplers.Uniform(0), "num_sampled must be an integer of at least 1; got 0"),
        (lambda: samplers.LogUniform(2.5), "num_sampled must be an integer .* got 2.5"),
        (lambda: samplers.TFSampler("uniform", 0), "num_sampled must be .* got 0"),
        (
            lambda: samplers.Uniform(3, unique=True, per_example=True),
            "unique must be False .* unique=True",
        ),
        (lambda: samplers.Unigram([1, -2.0, 3], 2), "counts must be finite .* got -2.0 for"),
        (lambda: samplers.Unigram([1, 2, np.nan], 2), "counts must be .* got nan for class 2"),
        (lambda: samplers.Bernoulli([np.inf, 2], 1), "counts must be .* got inf for class 0"),
        (lambda: samplers.Unigram([[1, 2]], 2), r"counts must have shape \[C\].* got shape \(1, 2"),
        (lambda: samplers.Unigram([], 2), r"counts must have shape \[C\], C > 0; got shape \(0,"),
        (lambda: samplers.Unigram([1e-30, 1.0], 1), "counts must not differ by a factor above"),
        (lambda: samplers.Unigram(FIVE, 2, power=-0.1), "power must be .* at most 1; got -0.1"),
        (lambda: samplers.Unigram(FIVE, 2, power=1.5), "power must be .* at most 1; got 1.5"),
        (lambda: samplers.Unigram(FIVE, 2, power=float("nan")), "power must be .* got nan"),
        (lambda: samplers.Bernoulli(FIVE, 0), "num_sampled must be .* above 0; got 0"),
        (lambda: samplers.Bernoulli(FIVE, -1.0), "num_sampled must be .* got -1.0"),
        (lambda: samplers.Bernoulli(FIVE, float("inf")), "num_sampled must be a finite .* got inf"),
        (
            lambda: samplers.Bernoulli(FIVE, "ten"),
            "num_sampled must be .*number .* got 'ten'",
        ),
        (lambda: samplers.TFSampler("zipf", 3), "function must be one of .* got 'zipf'"),
        (lambda: samplers.TFSampler(3, 3), "function must be one of .* or a callable; got 3"),
    ],
)
def test_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("counts", [["a", "b"], [True, True], [1 + 2j, 3]])
def test_counts_that_are_no_numbers(counts):
    with pytest.raises(TypeError, match="counts must be numbers; got dtype"):
        samplers.Unigram(counts, 1)


@pytest.mark.parametrize(
    ("sampler", "num_classes", "message"),
    [
        (samplers.Uniform(11), 10, "num_sampled must be at most num_classes=10 .* got 11"),
        (samplers.LogUniform(11), 10, "num_sampled must be at most num_classes=10 .* got 11"),
        (samplers.Unigram(FIVE, 6), 5, "num_sampled must be at most num_classes=5 .* got 6"),
        (samplers.TFSampler("uniform", 6), 5, "num_sampled must be at most num_classes=5 .* got 6"),
        (samplers.Unigram(FIVE, 2), 6, "counts must have one entry .* 6 classes; got 5"),
        (samplers.Bernoulli(FIVE, 2), 4, "counts must have one entry .* 4 classes; got 5"),
        (samplers.Bernoulli(FIVE, 5.5), 5, "num_sampled must be at most num_classes=5; got 5.5"),
        (samplers.Uniform(1), 1, "num_classes must be an integer of at least 2; got 1"),
        (samplers.Uniform(1), 2.0, "num_classes must be an integer of at least 2; got 2.0"),
    ],
)
def test_arguments_that_do_not_fit_the_number_of_classes(sampler, num_classes, message):
    for _ in range(2):  # it is unchanged
        with pytest.raises(ValueError, match=message):
            sampler.build(num_classes)
        assert sampler.num_classes is None


@pytest.mark.parametrize(
    "sampler",
    [samplers.Uniform(5), samplers.LogUniform(5), samplers.TFSampler("uniform", 5)],
    ids=["uniform", "log_uniform", "tensorflow"],
)
def test_all_classes_may_be_candidates(sampler):
    sampler.build(5)
    assert sorted(draw(sampler, [[0], [4]])[0]) == [0, 1, 2, 3, 4]


def test_with_replacement_there_may_be_more_candidates_than_classes():
    for sampler, probability in (
        (samplers.Uniform(11, unique=False), np.full(10, 0.1)),
        (samplers.Unigram(FIVE * 2, 11, per_example=True), np.array(FIVE * 2) / 30),
    ):
        sampler.build(10)
        ids, log_expected, of_labels = draw(sampler, [[0], [9]])
        assert ids.shape == ([2, 11] if sampler.per_example else [11])
        assert np.all((ids >= 0) & (ids < 10))
        np.testing.assert_allclose(log_expected, np.log(11 * probability[ids]), rtol=1e-6)
        np.testing.assert_allclose(of_labels, np.log(11 * probability[[[0], [9]]]), rtol=1e-6)
