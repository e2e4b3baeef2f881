# SPDX-License-Identifier: Apache-2.0
"""Defaults in docstrings are the real defaults."""

from __future__ import annotations

import ast
import importlib
import inspect
import re

import tfx_largeout as tlo

MODULES = [
    importlib.import_module(f"tfx_largeout.{name}")
    for name in ("callbacks", "class_trees", "datasets", "distribute", "heads", "hessian_free")
    + ("indexes", "layers", "losses", "metrics", "models", "optimizers", "samplers", "serving")
]
ARGUMENT = re.compile(r"^( {4})(\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", re.MULTILINE)
VALUE = r"(None|True|False|-?\d[\d_,.]*(?:e-?\d+)?|`?\"[^\"]*\"`?)"
DEFAULT = re.compile(rf"\b[Dd]efault:? `?{VALUE}`?(?=[\s.,:;)]|$)")


def public():
    for module in [tlo, *MODULES]:
        for name in getattr(module, "__all__", None) or dir(module):
            value = getattr(module, name)
            if name[0] != "_" and (inspect.isclass(value) or inspect.isfunction(value)):
                yield f"{module.__name__}.{name}", value


def claims(thing):
    """Yields arguments with a documented default: name, documented default, real default."""
    text = inspect.getdoc(thing) or ""
    section = re.search(r"^Args:\n((?: {4}.*\n|\n)+)", text + "\n", re.MULTILINE)
    parameters = inspect.signature(thing).parameters
    for _, names, said in ARGUMENT.findall(section[1] if section else ""):
        found = DEFAULT.search(re.sub(r"\s+", " ", said))
        for name in names.split(", "):
            if found and name in parameters and not isinstance(parameters[name].default, tuple):
                value = found[1].strip("`").rstrip(".,")
                yield name, ast.literal_eval(re.sub(r"(?<=\d),(?=\d)", "", value)), parameters[name]


def test_the_default_is_what_the_docstring_says():
    things = {thing: name for name, thing in public()}
    found = [(name, *claim) for thing, name in things.items() for claim in claims(thing)]
    assert len(found) > 150
    # None: a default that is determined later.
    wrong = [each for each in found if each[-1].default not in (None, each[-2])]
    assert not wrong
