# SPDX-License-Identifier: Apache-2.0
"""The pages of `mkdocs build`: a hook of mkdocs.yml.

Pages have the same paths in the site as files in the repository, so that links between them, and to
the data and scripts of figures, work in both. A notebook becomes a page with its stored outputs.
Added are the public names, a page per module, from docstrings, and a list of files for each folder
that the README links to.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*.md", "docs/*.css", "docs/figures/*.png", "docs/figures/*.svg")
LISTED = (
    "examples/*",
    "examples/serve/*.py",
    "tests/recipes/*.diff",
    "benchmarks/*.py",
    "benchmarks/results/*.csv",
)
NOTEBOOKS = "docs/notebooks/*.ipynb"
WORDNET = "tfx_largeout/datasets/wordnet_reverse_dictionary"
LICENCES = ("LICENSE", f"{WORDNET}/LICENSE.wordnet", f"{WORDNET}/SOURCE.txt", "CITATION.cff")
TO_NOTEBOOK = re.compile(r"\]\(([\w/.]+)\.ipynb\)")
NAME = re.compile(r"^\| `tlo\.([\w.]+)` \|", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replaces `folder/*` in the navigation by the pages of the folder."""
    config.nav = [_expanded(section) for section in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Returns the files of the site, instead of the files in docs/."""
    patterns = (*PAGES, *LISTED, NOTEBOOKS, *LICENCES)
    paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    names = [path.relative_to(ROOT).as_posix() for path in paths if path.is_file()]
    site = [File.generated(config, name, abs_src_path=str(ROOT / name)) for name in names]
    pages = {"examples/index.md": _list_of(names, "examples")}
    pages["benchmarks/index.md"] = _list_of(names, "benchmarks")
    names_page = _public_names()
    pages["docs/api.md"] = names_page
    sections = names_page.split("\n## ")[1:]
    pages |= {f"docs/api/{_title(section)}.md": _reference(section) for section in sections}
    pages |= {name.replace(".ipynb", ".md"): _notebook(name) for name in names if "ipynb" in name}
    site += [File.generated(config, name, content=text) for name, text in pages.items()]
    theme = [file for file in files if file.src_dir != config.docs_dir]
    return Files([*theme, *site])


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Returns a page with links to where names are documented and to lists of files."""
    if page.file.src_uri == "docs/api.md":
        return NAME.sub(r"| [`tlo.\1`][tfx_largeout.\1] |", markdown)
    if not page.file.src_uri.startswith("docs/notebooks/"):
        markdown = TO_NOTEBOOK.sub(r"](\1.md)", markdown)
    return re.sub(r"\]\(((?:\.\./)*(?:examples|benchmarks))\)", r"](\1/index.md)", markdown)


def _expanded(section: dict[str, Any]) -> dict[str, Any]:
    ((title, pages),) = section.items()
    if not isinstance(pages, list):
        return section
    nav: list[Any] = []
    for page in pages:
        if isinstance(page, str) and page.endswith("*"):
            found = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(f"{page}.md"))
            nav += [name for name in found if name not in pages]
        else:
            nav.append(page)
    return {title: nav}


def _list_of(names: list[str], folder: str) -> str:
    inside = [name.removeprefix(f"{folder}/") for name in names if name.startswith(f"{folder}/")]
    return "\n".join([f"# {folder}/\n", *(f"- [{name}]({name})" for name in inside)])


def _public_names() -> str:
    path = ROOT / "docs" / "public_names.py"
    spec: Any = importlib.util.spec_from_file_location("public_names", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.page())


def _title(section: str) -> str:
    return section.splitlines()[0].removeprefix("tlo.")


def _reference(section: str) -> str:
    title, _, rest = section.partition("\n")
    names = "\n\n".join(f"::: tfx_largeout.{name}" for name in NAME.findall(section))
    return f"# {title}\n{rest.split('| name |')[0]}\n{names}\n"


def _notebook(name: str) -> str:
    """Returns a notebook as a page: its texts, its code, and below that what it printed."""
    title, *cells = json.loads((ROOT / name).read_text())["cells"]
    source = f"This page is a notebook: [{Path(name).name}]({Path(name).name})."
    return "\n\n".join([_cell(title), source, *map(_cell, cells)])


def _cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return TO_NOTEBOOK.sub(r"](\1.md)", text)
    printed = "".join(line for output in cell["outputs"] for line in output["text"])
    return f"```python\n{text}\n```" + (f"\n\n```text\n{printed}```" if printed else "")
