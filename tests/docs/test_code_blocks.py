# SPDX-License-Identifier: Apache-2.0
"""Python in documents and docstrings parses, and its calls have existing names and arguments.

Code in docstrings also runs, on a small model and data instead of the reader's.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo

ROOT = Path(__file__).parents[2]
PACKAGE = Path(tlo.__file__).parent
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
PUBLIC = {name: getattr(tlo, name) for name in tlo.__all__}
NAMES = {"tlo": tlo, **PUBLIC}
for module in filter(inspect.ismodule, PUBLIC.values()):
    NAMES |= {name: getattr(module, name) for name in getattr(module, "__all__", ())}


def blocks_in(folder, pattern):
    for path in sorted(folder.glob(pattern)):
        for number, (_, code) in enumerate(BLOCK.findall(path.read_text())):
            yield pytest.param(textwrap.dedent(code), id=f"{path.relative_to(folder)}-{number}")


def dotted(node):
    """Returns the parts of `a.b.c`, or None for anything else."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (parts := dotted(node.value)):
        return [*parts, node.attr]
    return None


def named(node, own):
    """Returns the object of an expression in the package, or None; fails for an unknown name."""
    parts = dotted(node)
    if parts is None or parts[0] not in NAMES or parts[0] in own:
        return None
    value = NAMES[parts[0]]
    for part in parts[1:]:
        value = getattr(value, part)
    return value


def own_names(tree):
    """Returns the arguments and variables of a block, which may be called as a module is."""
    nodes = list(ast.walk(tree))
    names = [each for each in nodes if isinstance(each, ast.Name)]
    stored = {each.id for each in names if isinstance(each.ctx, ast.Store)}
    return stored | {each.arg for each in nodes if isinstance(each, ast.arg)}


@pytest.mark.parametrize(
    "code",
    [
        *blocks_in(ROOT, "*.md"),
        *blocks_in(ROOT / "docs", "**/*.md"),
        *blocks_in(PACKAGE, "**/*.py"),
    ],
)
def test_names_and_arguments_exist(code):
    tree = ast.parse(code)
    own = own_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("tfx_largeout"):
            exec(ast.unparse(node), {})
        elif isinstance(node, ast.Attribute):
            named(node, own)
        elif isinstance(node, ast.Call) and callable(function := named(node.func, own)):
            if any(isinstance(each, ast.Starred) for each in node.args):
                continue
            keywords = {each.arg: None for each in node.keywords}
            dots = [each for each in node.args if getattr(each, "value", None) is ...]
            signature = inspect.signature(function)
            bind = signature.bind_partial if dots else signature.bind
            bind(*node.args, **keywords)


def test_there_are_blocks_to_check():
    assert len(list(blocks_in(ROOT / "docs", "**/*.md"))) > 30
    assert len(list(blocks_in(PACKAGE, "**/*.py"))) >= 10


CLASSES, WIDTH, FEATURES, EXAMPLES = 2000, 8, 20, 32
SAMPLER = tlo.samplers.LogUniform(50)
LABELS = np.arange(EXAMPLES)


def examples():
    splits = np.arange(EXAMPLES + 1)
    ids, ones = splits[:-1] % FEATURES, np.ones(EXAMPLES, "float32")
    return tlo.datasets.SparseExamples(splits, ids, ones, splits, LABELS, FEATURES, CLASSES)


def own_model(code):
    """The `model` of a block: with a Dense layer that a head may replace, or with a head."""
    if "replace_output" in code or "compare_" in code:
        model = keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(CLASSES)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, run_eagerly=True)
        return model
    if any(name in code for name in ("choose_", "SampledValidation", "sampler,")):
        head = tlo.heads.SampledHead(CLASSES, SAMPLER, tlo.optimizers.RowSGD(0.1))
        model = keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(WIDTH), head])
        model.compile("adam", tlo.losses.ComplementarySum(), run_eagerly=True)
        return model
    inputs = keras.Input([FEATURES], sparse=True)
    hidden = tlo.layers.SparseDense(WIDTH)(inputs)
    model = keras.Model(inputs, tlo.heads.DenseHead(CLASSES)(hidden))
    model.compile("adam", tlo.losses.SoftmaxCrossentropy(), run_eagerly=True)
    return model


def run_block(code):
    own = {name: CLASSES for name in ("C", "num_classes", "num_words")}
    own |= {"counts": np.arange(CLASSES)[::-1] + 1, "train": examples()}
    own |= {"sampler": SAMPLER, "model": own_model(code), "inputs": keras.Input([3], dtype="int32")}
    if any(name in code for name in ("choose_", "compare_", "SampledValidation")):
        x = np.random.default_rng(0).normal(size=(EXAMPLES, WIDTH)).astype("float32")
        own |= {"head": own["model"].layers[-1], "x": x, "y": LABELS, "hidden": tf.constant(x)}
    names = {**NAMES, **vars(tlo.statistics), **own, "keras": keras, "np": np, "tf": tf}
    exec(code, names)
    return names


def inputs_of(model):
    (tensor,) = model.inputs
    values = np.ones([EXAMPLES, *tensor.shape[1:]], tensor.dtype)
    return tf.sparse.from_dense(values) if tensor.sparse else values


@pytest.mark.parametrize("code", [*blocks_in(PACKAGE, "**/*.py")])
def test_examples_in_docstrings_run_and_train(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_block(code)
    model, head = names["model"], names.get("head")
    if head is not None and head not in model.layers:  # for a model that the reader has
        loss = model.loss
        model = keras.Sequential([keras.Input([WIDTH]), head])
        model.compile("adam", loss)
    for value in names.values():  # a loss of the block's own
        if isinstance(value, keras.losses.Loss):
            model.compile("adam", value)
    if "LargestTarget" in names:
        model.compile("adam", names["LargestTarget"]())
    loss = model.fit(inputs_of(model), LABELS, verbose=0).history["loss"]
    assert np.isfinite(loss).all()
