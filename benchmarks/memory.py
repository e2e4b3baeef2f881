# SPDX-License-Identifier: Apache-2.0
"""`tlo.estimate_memory` compared with the measured memory, for each head and embedding.

    python benchmarks/memory.py                     # all cases; writes CSV rows
    python benchmarks/memory.py --cases "sampled"   # one; nothing is written

Each case is a separate process. After a fit of a tiny model of the same kind, it builds the large
one, fits three batches and evaluates one. `measured_mib` is the peak of its resident memory minus
the memory before; `estimate_mib` is `peak`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo

OUTPUT = harness.RESULTS / "memory.csv"
WIDTH, TINY_CLASSES, TINY_BATCH = 128, 10_000, 4


class Case(NamedTuple):
    """A model.

    Attributes:
        name: Of the row.
        make: `make(C, dtype)` returns a compiled model.
        classes: C.
        batch: B.
        dtype: The policy of the head.
        words: How many ids an example has, whose embeddings the head looks at; 0: features `[D]`.
        sequence: T, of inputs `[B, T, D]`; 0: `[B, D]`.
    """

    name: str
    make: Callable[..., keras.Model]
    classes: int = 1_000_000
    batch: int = 256
    dtype: str = "float32"
    words: int = 0
    sequence: int = 0


def adam() -> Any:
    """The row optimizer of most cases."""
    return tlo.optimizers.RowAdam(1e-3)


def _on_features(
    make_head: Callable[[int, str], Any], loss: Callable[[], Any], optimizer: Any = "sgd"
) -> Callable[..., keras.Model]:
    def make(classes: int, dtype: str, sequence: int = 0) -> keras.Model:
        inputs = keras.Input([sequence, WIDTH] if sequence else [WIDTH])
        hidden = keras.layers.Dense(WIDTH)(inputs)
        model = keras.Model(inputs, make_head(classes, dtype)(hidden))
        model.compile(optimizer() if callable(optimizer) else optimizer, loss=loss())
        return model

    return make


def _sampled(sampler: Callable[[int], Any], optimizer: Callable[[], Any] = adam, **kw: Any) -> Any:
    def make(classes: int, dtype: str) -> Any:
        made = {name: value() for name, value in kw.items()}
        return tlo.heads.SampledHead(
            classes, sampler(classes), optimizer(), dtype=dtype, seed=1, **made
        )

    return _on_features(make, tlo.losses.ComplementarySum)


def _exact(**kw: Any) -> Any:
    def make(classes: int, dtype: str) -> Any:
        return tlo.heads.ExactSoftmaxHead(classes, adam(), seed=1, dtype=dtype, **kw)

    return _on_features(make, tlo.losses.SoftmaxCrossentropy)


def _hierarchical(**kw: Any) -> Any:
    def make(classes: int, dtype: str) -> Any:
        return tlo.heads.HierarchicalSoftmaxHead(classes, adam(), dtype=dtype, **kw)

    return _on_features(make, tlo.losses.NegativeLogLikelihood)


def _tied(make_head: Callable[[Any], Any], loss: Callable[[], Any], optimizer: Any = adam) -> Any:
    def make(classes: int, dtype: str) -> keras.Model:
        table = tlo.layers.RowEmbedding(classes, WIDTH, dtype=dtype)
        inputs = keras.Input([8], dtype="int32")
        hidden = keras.layers.GlobalAveragePooling1D()(table(inputs))
        model = keras.Model(inputs, make_head(table)(hidden))
        model.compile(optimizer() if callable(optimizer) else optimizer, loss=loss())
        return model

    return make


def _embedding(layer: Callable[..., Any], optimizer: Any = adam) -> Any:
    def make(classes: int, dtype: str) -> keras.Model:
        inputs = keras.Input([8], dtype="int32")
        hidden = keras.layers.GlobalAveragePooling1D()(layer(classes, WIDTH, dtype=dtype)(inputs))
        model = keras.Model(inputs, keras.layers.Dense(10)(hidden))
        model.compile(
            optimizer() if callable(optimizer) else optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,
        )
        return model

    return make


def _factored_embedding(classes: int, dtype: str) -> keras.Model:
    head = tlo.heads.FactoredHead(classes, 0.1)
    inputs = keras.Input([8], dtype="int32")
    hidden = tlo.layers.FactoredEmbedding(head, WIDTH)(inputs)
    model = keras.Model(inputs, head(keras.layers.GlobalAveragePooling1D()(hidden)))
    model.compile("sgd", loss=tlo.losses.TaylorSoftmax())
    return model


def _keras_dense(optimizer: Any) -> Any:
    return _on_features(
        lambda classes, dtype: keras.layers.Dense(classes, dtype=dtype),
        lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer,
    )


def _dense(optimizer: Any, **kw: Any) -> Any:
    return _on_features(
        lambda classes, dtype: tlo.heads.DenseHead(classes, dtype=dtype, **kw),
        tlo.losses.SoftmaxCrossentropy,
        optimizer,
    )


def _factored(**kw: Any) -> Any:
    return _on_features(
        lambda classes, dtype: tlo.heads.FactoredHead(classes, 0.1, **kw), tlo.losses.TaylorSoftmax
    )


def _counts(classes: int) -> np.ndarray:
    return np.ceil(classes / np.arange(1, classes + 1))


def _hash_index() -> Any:
    return tlo.indexes.HashIndex(tlo.indexes.SimHash(), 8, 20)


_samplers, _heads, _losses = tlo.samplers, tlo.heads, tlo.losses
CASES = [
    Case("sampled", _sampled(lambda c: _samplers.LogUniform(2000))),
    Case("sampled, bfloat16", _sampled(lambda c: _samplers.LogUniform(2000)), dtype="bfloat16"),
    Case("sampled, B = 4096", _sampled(lambda c: _samplers.LogUniform(2000)), batch=4096),
    Case("sampled, T = 32", _sampled(lambda c: _samplers.LogUniform(2000)), sequence=32),
    Case(
        "sampled, RowSGD",
        _sampled(lambda c: _samplers.LogUniform(2000), lambda: tlo.optimizers.RowSGD(0.1)),
    ),
    Case(
        "sampled, RowAdagrad",
        _sampled(lambda c: _samplers.LogUniform(2000), lambda: tlo.optimizers.RowAdagrad(0.1)),
    ),
    Case("sampled, own", _sampled(lambda c: _samplers.LogUniform(200, per_example=True))),
    Case(
        "sampled, own, B = 4096",
        _sampled(lambda c: _samplers.LogUniform(200, per_example=True)),
        batch=4096,
    ),
    Case("sampled, Unigram", _sampled(lambda c: _samplers.Unigram(_counts(c), 2000))),
    Case("sampled, Bernoulli", _sampled(lambda c: _samplers.Bernoulli(_counts(c), 2000))),
    Case("sampled, InBatch", _sampled(lambda c: _samplers.InBatch())),
    Case(
        "sampled, LSHEmbedding",
        _sampled(
            lambda c: _samplers.LSHEmbedding(500, _samplers.LogUniform(500)), index=_hash_index
        ),
    ),
    Case(
        "sampled, LSHEmbedding, own",
        _sampled(
            lambda c: _samplers.LSHEmbedding(100, _samplers.LogUniform(100), per_example=True),
            index=_hash_index,
        ),
    ),
    Case("sampled, MIDX", _sampled(lambda c: _samplers.MIDX(200))),
    Case("sampled, ExactSoftmaxSampler", _sampled(lambda c: _samplers.ExactSoftmaxSampler(200))),
    Case(
        "sampled, cosine",
        _sampled(lambda c: _samplers.LogUniform(2000), cosine_scale=lambda: 16.0),
    ),
    Case("exact", _exact()),
    Case("exact, bfloat16", _exact(), dtype="bfloat16"),
    Case("exact, B = 2048", _exact(), batch=2048),
    Case("exact, all", _exact(backward="all")),
    Case("exact, all, B = 2048", _exact(backward="all"), batch=2048, classes=500_000),
    Case("factored", _factored()),
    Case("factored, bias", _factored(use_bias=True)),
    Case("factored, B = 2048", _factored(), batch=2048),
    Case("hierarchical, two levels", _hierarchical()),
    Case("hierarchical, huffman", _hierarchical(tree="huffman")),
    Case("dense, SGD", _dense("sgd"), classes=500_000, batch=64),
    Case("dense, Adam", _dense("adam"), classes=500_000, batch=64),
    Case("dense, FusedAdam", _dense(tlo.optimizers.FusedAdam), classes=500_000, batch=64),
    Case("dense, bfloat16, SGD", _dense("sgd"), classes=500_000, batch=64, dtype="bfloat16"),
    Case("dense, cosine, SGD", _dense("sgd", cosine_scale=16.0), classes=500_000, batch=64),
    Case("keras Dense, SGD", _keras_dense("sgd"), classes=500_000, batch=64),
    Case("keras Dense, Adam", _keras_dense("adam"), classes=500_000, batch=64),
    Case(
        "tied sampled",
        _tied(
            lambda e: _heads.TiedSampledHead(e, _samplers.LogUniform(2000)),
            _losses.ComplementarySum,
        ),
        words=8,
    ),
    Case(
        "tied sampled, Adam",
        _tied(
            lambda e: _heads.TiedSampledHead(e, _samplers.LogUniform(2000)),
            _losses.ComplementarySum,
            "adam",
        ),
        words=8,
    ),
    Case(
        "tied exact",
        _tied(_heads.TiedExactSoftmaxHead, _losses.SoftmaxCrossentropy),
        words=8,
    ),
    Case(
        "tied exact, all",
        _tied(
            lambda e: _heads.TiedExactSoftmaxHead(e, backward="all"),
            _losses.SoftmaxCrossentropy,
            tlo.optimizers.FusedAdam,
        ),
        words=8,
    ),
    Case("RowEmbedding", _embedding(tlo.layers.RowEmbedding), words=8),
    Case("RowEmbedding, Adam", _embedding(tlo.layers.RowEmbedding, "adam"), words=8),
    Case("keras Embedding, Adam", _embedding(keras.layers.Embedding, "adam"), words=8),
    Case("FactoredEmbedding", _factored_embedding, words=8),
]


def run(case: Case, classes: int, batch: int) -> keras.Model:
    """Builds, fits and evaluates; returns the model."""
    if case.sequence:
        model = case.make(classes, case.dtype, case.sequence)
    else:
        model = case.make(classes, case.dtype)
    rng = np.random.default_rng(0)
    shape = (batch, case.sequence) if case.sequence else (batch,)
    if case.words:
        x = rng.integers(classes, size=(batch, case.words)).astype("int32")
    else:
        x = rng.standard_normal((*shape, WIDTH)).astype("float32")
    labels = min(classes, model.output_shape[-1] or classes)
    data = tf.data.Dataset.from_tensors((x, rng.integers(labels, size=shape)))
    model.fit(data.repeat(3), verbose=0)
    few = min(batch, 256)
    model.evaluate(x[:few], rng.integers(labels, size=(few, *shape[1:])), few, verbose=0)
    return model


def row_of(case: Case) -> dict[str, Any]:
    """Returns a row of the table, measured in this process."""
    run(case, TINY_CLASSES, TINY_BATCH)
    gc.collect()
    models: list[keras.Model] = []
    measured = harness.peak_mib(lambda: models.append(run(case, case.classes, case.batch)))
    estimate = tlo.estimate_memory(models[0], case.batch)
    return {
        "case": case.name,
        "classes": case.classes,
        "width": WIDTH,
        "batch": case.batch * (case.sequence or 1),
        "weights_mib": round(estimate.weights / 2**20),
        "optimizer_mib": round(estimate.optimizer / 2**20),
        "index_mib": round(estimate.index / 2**20),
        "step_mib": round(estimate.step / 2**20),
        "estimate_mib": round(estimate.peak / 2**20),
        "measured_mib": round(measured),
        "ratio": f"{estimate.peak / 2**20 / measured:.3f}",
        **harness.machine(),
    }


def main() -> None:
    """Measures each case in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in CASES])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    by_name = {case.name: case for case in CASES}
    if arguments.child:
        print(json.dumps(row_of(by_name[arguments.child])))
        return
    rows = []
    for name in arguments.cases or by_name:
        rows.append(json.loads(harness.in_child("--child", name)))
        print({key: rows[-1][key] for key in ("case", "estimate_mib", "measured_mib", "ratio")})
        if arguments.output:
            harness.write_csv(arguments.output, rows)
    if not arguments.cases and not arguments.output:
        harness.write_csv(OUTPUT, rows)


if __name__ == "__main__":
    main()
