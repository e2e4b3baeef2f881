# SPDX-License-Identifier: Apache-2.0
"""Compares heads trained on a GPU and on the CPU: same weights, same batches, 20 steps.

    python benchmarks/gpu/same_numbers.py                                # with the GPU kernels
    TFX_LARGEOUT_GPU_KERNELS=0 python benchmarks/gpu/same_numbers.py     # on TensorFlow's ops

It prints, for each head, the mean loss on both and the largest difference of logits, relative to
the largest logit. The goal is at most 1e-5; the last line says whether all heads meet it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout import heads, indexes, losses, optimizers, samplers

CLASSES, WIDTH, BATCH, STEPS = 5_000, 64, 128, 20
GOAL = 1e-5

HEADS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "dense": lambda: (heads.DenseHead(CLASSES), losses.SoftmaxCrossentropy()),
    "exact, Adam": lambda: (
        heads.ExactSoftmaxHead(CLASSES, optimizers.RowAdam(1e-2)),
        losses.SoftmaxCrossentropy(),
    ),
    "exact, SGD": lambda: (
        heads.ExactSoftmaxHead(CLASSES, optimizers.RowSGD(1e-1)),
        losses.SoftmaxCrossentropy(),
    ),
    "factored": lambda: (heads.FactoredHead(CLASSES, 1e-2), losses.SphericalSoftmax()),
    "sampled, all classes": lambda: sampled(samplers.Uniform(CLASSES)),
    "sampled": lambda: sampled(samplers.LogUniform(500)),
    "sampled, each example": lambda: sampled(samplers.LogUniform(50, per_example=True)),
    "sampled, hash index": lambda: sampled(
        samplers.LSHEmbedding(200, samplers.LogUniform(200)),
        index=indexes.HashIndex(indexes.WTAHash(), hashes_per_table=3),
    ),
    "sampled, MIDX": lambda: sampled(samplers.MIDX(200, 16)),
}


def sampled(sampler: samplers.Sampler, **options: Any) -> tuple[Any, Any]:
    """Returns a `SampledHead` with this sampler, and its loss."""
    optimizer = optimizers.RowAdagrad(1e-1)
    head = heads.SampledHead(CLASSES, sampler, optimizer, seed=1, **options)
    return head, losses.ComplementarySum()


def train(make: Callable[[], tuple[Any, Any]], device: str) -> tuple[float, np.ndarray]:
    """Returns the mean loss of an epoch on a device, and logits after it."""
    random = np.random.default_rng(0)
    features = random.standard_normal((BATCH * STEPS, WIDTH)).astype("float32")
    labels = ((random.zipf(1.3, BATCH * STEPS) - 1) % CLASSES).astype("int32")
    with tf.device(device):
        keras.utils.set_random_seed(3)
        head, loss = make()
        hidden = keras.layers.Dense(WIDTH, activation="tanh")
        model = keras.Sequential([keras.Input([WIDTH]), hidden, head])
        model.compile(keras.optimizers.SGD(0.1), loss=loss, jit_compile=False)
        fitted = model.fit(features, labels, batch_size=BATCH, verbose=0, shuffle=False)
        return fitted.history["loss"][0], np.asarray(model.predict(features[:64], verbose=0))


def main() -> None:
    """Trains each head on the CPU and on the GPU, and prints how far they are apart."""
    device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
    largest = 0.0
    for name, make in HEADS.items():
        (loss, logits), (other_loss, others) = train(make, "CPU:0"), train(make, device)
        difference = np.abs(logits - others).max() / np.abs(logits).max()
        largest = max(largest, float(difference))
        print(f"{name:22} loss {loss:.5f} {other_loss:.5f}  logits {difference:.1e}", flush=True)
    verdict = "kept" if largest <= GOAL else "missed"
    print(f"CPU:0 against {device}: at most {largest:.1e}; the goal of {GOAL:.0e} is {verdict}")


if __name__ == "__main__":
    main()
