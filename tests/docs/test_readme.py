# SPDX-License-Identifier: Apache-2.0
"""The README's examples run unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from child import run_program
from variants import thorough

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)

# By the beginning of an example: the measure of its model, and the least precision at 1.
EXAMPLES = {
    "import keras, numpy": (
        "model.evaluate(features[:1000], labels[:1000], return_dict=True)",
        0.9,
    ),
    "import keras, tfx_largeout": ("model.evaluate(test.dataset(512), return_dict=True)", 0.2),
}
QUICK, *LONG = EXAMPLES


def test_all_examples_are_run():
    whole = [block for block in BLOCKS if block.startswith("import")]
    assert [[block.startswith(start) for start in EXAMPLES] for block in whole] == [
        [True, False],
        [False, True],
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("start", [QUICK, *thorough(*LONG)])
def test_an_example_learns_and_finds_the_best_classes(tmp_path, start):
    measure, least = EXAMPLES[start]
    (block,) = [block for block in BLOCKS if block.startswith(start)]
    program = f"{block}\nresult = {measure}\nprint()\nprint(ids.shape[1], result['precision_at_1'])"
    best, precision = run_program(tmp_path, program)[-2:]
    assert best == "5"
    assert float(precision) > least
