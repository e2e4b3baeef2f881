# SPDX-License-Identifier: Apache-2.0
"""The list of all public names, from the docstrings: a page of the site, which this prints."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import tfx_largeout

TITLE = """# All public names

`import tfx_largeout as tlo`. Each name has a docstring with formula, arguments, errors and cost:
`help(tlo.heads.SampledHead)`.
"""


def public_names(module: ModuleType) -> list[str]:
    """Returns what a module offers: its `__all__`, or the classes and functions it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def line_of(prefix: str, name: str, value: Any) -> str:
    """Returns a row of a table: a name, and the first line of its docstring."""
    first = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
    return f"| `{prefix}.{name}` | {first} |"


def table(title: str, intro: str, lines: list[str]) -> str:
    """Returns a section of the page."""
    return "\n".join([f"## {title}\n", intro, "| name | what |\n|---|---|", *lines, ""])


def page() -> str:
    """Returns the text of the page."""
    values = {name: getattr(tfx_largeout, name) for name in tfx_largeout.__all__}
    own = [line_of("tlo", n, value) for n, value in values.items() if not inspect.ismodule(value)]
    sections = [TITLE, table("tlo", "", own)]
    for name, module in values.items():
        if inspect.ismodule(module):
            intro = (inspect.getdoc(module) or "").split("\n\n")[0] + "\n"
            names = public_names(module)
            lines = [line_of(f"tlo.{name}", each, getattr(module, each)) for each in names]
            sections.append(table(f"tlo.{name}", intro, lines))
    return "\n".join(sections)


if __name__ == "__main__":
    print(page())
