# SPDX-License-Identifier: Apache-2.0
"""Which part of the package may import which, and that the order of imports does not matter."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from child import run_child

ROOT = Path(__file__).parents[1] / "tfx_largeout"

# Each part imports only parts before it. The package's `__init__` imports all but the last two,
# which have more requirements than the package.
LAYERS = (
    "arguments",
    "devices",
    "written_whole",
    "keras_internals",
    "tensorflow_internals",
    "run_time_checks",
    "memory",
    "labels",
    "example_weights",
    "distribute",
    "statistics",
    "saving",
    "class_filter",
    "class_counts",
    "class_names",
    "initializers",
    "ops",
    "class_trees",
    "optimizers",
    "indexes",
    "samplers",
    "heads",
    "losses",
    "metrics",
    "layers",
    "callbacks",
    "hessian_free",
    "models",
    "serving",
    "datasets",
    "compare",
)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports_of(path: Path) -> set[str]:
    """Returns the modules of the package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            submodules = {f"{node.module}.{name.name}" for name in node.names}
            found |= (submodules & set(MODULES)) or {node.module}
    return {name for name in found if name.split(".")[0] == "tfx_largeout"}


def part_of(module: str) -> str:
    return module.split(".")[1]


def test_every_part_has_its_layer():
    assert {part_of(module) for module in MODULES if "." in module} == set(LAYERS)


@pytest.mark.parametrize("module", [module for module in MODULES if "." in module])
def test_a_module_imports_only_what_is_below_it(module):
    own = LAYERS.index(part_of(module))
    for other in imports_of(MODULES[module]):
        assert "." in other, f"{module} must not import the whole package"
        assert LAYERS.index(part_of(other)) <= own, f"{module} must not import {other}"


def test_no_two_modules_import_each_other():
    """However long the circle is; a package imports its own modules, not the other way round."""
    graph = {module: imports_of(path) - {module} for module, path in MODULES.items()}
    while graph:
        free = [module for module, others in graph.items() if not others & set(graph)]
        assert free, f"these import each other: {sorted(graph)}"
        graph = {module: others for module, others in graph.items() if module not in free}


# Imports each module of a package without the imports of its `__init__`.
FIRST = """
import importlib.util, json, os, sys, types
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
modules = json.loads(sys.argv[1])
import keras, tensorflow
roots = importlib.util.find_spec("tfx_largeout").submodule_search_locations
failed = {}
for module in modules:
    for name in [name for name in sys.modules if name.split(".")[0] == "tfx_largeout"]:
        del sys.modules[name]
    datasets = sys.modules.get("tensorflow_datasets.core.registered")
    if datasets is not None:
        datasets._DATASET_REGISTRY.clear()  # it refuses a name that it has seen
    bare = types.ModuleType("tfx_largeout")
    bare.__path__ = roots
    sys.modules["tfx_largeout"] = bare
    try:
        importlib.import_module(module)
    except BaseException as error:
        failed[module] = repr(error)
print(json.dumps(failed))
"""


@pytest.mark.thorough
def test_every_module_can_be_imported_first(tmp_path):
    program = tmp_path / "first.py"
    program.write_text(FIRST)
    modules = [module for module in MODULES if "." in module and not _is_program(module)]
    done = run_child(tmp_path, str(program), json.dumps(modules))
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}


def _is_program(module: str) -> bool:
    return module.endswith("__main__")


def test_nothing_but_distribute_asks_whether_a_worker_is_alone():
    """One process has a separate class, and its different behaviour is in methods of that class."""
    asks = {module for module, path in MODULES.items() if re.search(r"\.alone\b", path.read_text())}
    assert {part_of(module) for module in asks} <= {"distribute"}


def test_private_modules_of_keras_and_tensorflow_have_one_place_each():
    private = re.compile(r"\b(keras\.src|tensorflow\.python)\b")
    files = {path.name for path in MODULES.values() if private.search(path.read_text())}
    assert files == {"keras_internals.py", "tensorflow_internals.py"}
