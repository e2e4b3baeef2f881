# SPDX-License-Identifier: Apache-2.0
"""Mutants: small faults put into a source file, one at a time, by cosmic-ray or by edits of C++."""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PYTHON_PARTS = ("losses", "heads", "samplers", "optimizers", "indexes")
PARTS = (*PYTHON_PARTS, "core")

# The operators of cosmic-ray whose mutants don't always fail by their types.
_OPERATORS = (
    "AddNot",
    "ExceptionReplacer",
    "NumberReplacer",
    "RemoveDecorator",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceUnaryOperator_Delete_USub",
    "ZeroIterationForLoop",
    *(
        f"ReplaceBinaryOperator_{old}_{new}"
        for old, new in [
            ("Add", "Sub"),
            ("Sub", "Add"),
            ("Mul", "Div"),
            ("Div", "Mul"),
            ("FloorDiv", "Mul"),
            ("Mod", "FloorDiv"),
            ("Pow", "Mul"),
            ("BitAnd", "BitOr"),
            ("BitOr", "BitAnd"),
        ]
    ),
    *(
        f"ReplaceComparisonOperator_{old}_{new}"
        for old, new in [
            ("Eq", "NotEq"),
            ("NotEq", "Eq"),
            ("Lt", "LtE"),
            ("LtE", "Lt"),
            ("Gt", "GtE"),
            ("GtE", "Gt"),
            ("Lt", "Gt"),
            ("Gt", "Lt"),
            ("Is", "IsNot"),
            ("IsNot", "Is"),
        ]
    ),
)

_CPP_EDITS = {
    "Lt_LtE": (r" < (?![^;{]*>[({ ])", " <= "),
    "LtE_Lt": (r" <= ", " < "),
    "Gt_GtE": (r" > ", " >= "),
    "GtE_Gt": (r" >= ", " > "),
    "Eq_NotEq": (r" == ", " != "),
    "NotEq_Eq": (r" != ", " == "),
    "Add_Sub": (r" \+ ", " - "),
    "Sub_Add": (r" - ", " + "),
    "Mul_Div": (r"(?<=\w) \* (?=\w)", " / "),
    "Div_Mul": (r" / ", " * "),
    "And_Or": (r" && ", " || "),
    "Or_And": (r" \|\| ", " && "),
    "AddAssign_SubAssign": (r" \+= ", " -= "),
    "Delete_Not": (r"(?<=\()!(?=\w)", ""),
    "Zero_One": (r"(?<= = )0(?=;)", "1"),
    "One_Two": (r"(?<= )1(?=[;)])", "2"),
    "True_False": (r"\btrue\b", "false"),
    "False_True": (r"\bfalse\b", "true"),
    "Max_Min": (r"\bstd::max\b", "std::min"),
    "Min_Max": (r"\bstd::min\b", "std::max"),
}


class Mutant(NamedTuple):
    """One fault.

    Attributes:
        part: Of the package.
        file: From the root.
        line: Its first line.
        operator: The kind of change.
        occurrence: Where, counted from 0 among the places of the operator in the file.
        before: The lines that change.
        after: The new text.
    """

    part: str
    file: str
    line: int
    operator: str
    occurrence: int
    before: str
    after: str

    @property
    def key(self) -> tuple[str, ...]:
        """Its identity, independent of other changes in the file."""
        return self.file, self.operator, self.before, self.after

    def apply(self, code: str) -> str:
        """Returns the file's content with the fault."""
        if self.part == "core":
            return _edit(code, self.operator, self.occurrence)
        return _mutate(code, self.operator, self.occurrence)


def sample(part: str, seed: int) -> list[Mutant]:
    """Returns the mutants of a part in the order of a seed, independent of other changes there.

    Mutants that don't compile, or that only change annotations or comments, are left out.
    """
    found = {}
    for file in _files(part):
        code = file.read_text()
        make = _cpp_mutants if part == "core" else _python_mutants
        for mutant in make(part, str(file.relative_to(ROOT)), code):
            found.setdefault(mutant.key, mutant)

    def drawn(mutant: Mutant) -> bytes:
        return hashlib.sha256(repr((seed, mutant.key)).encode()).digest()

    return sorted(found.values(), key=drawn)


def _files(part: str) -> list[Path]:
    if part == "core":
        return sorted(p for s in ("h", "cc") for p in (ROOT / "custom_ops/core").glob(f"*.{s}"))
    return sorted(p for p in (ROOT / "tfx_largeout" / part).glob("*.py") if p.stem != "__init__")


def _python_mutants(part, file, code):
    plain = _without_annotations(code)
    for operator in _OPERATORS:
        occurrence = 0
        while (mutated := _mutate(code, operator, occurrence)) is not None:
            if _without_annotations(mutated) not in (plain, None):
                yield _described(part, file, operator, occurrence, code, mutated)
            occurrence += 1


def _mutate(code, operator, occurrence):
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    return mutate_code(code, get_operator(f"core/{operator}")(), occurrence)


def _without_annotations(code: str) -> str | None:
    """Returns a normal form of code; None if it is not Python."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            node.annotation = ast.Constant(0)
        if isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.dump(tree)


def _cpp_mutants(part, file, code):
    for operator, (pattern, _) in _CPP_EDITS.items():
        for occurrence, match in enumerate(re.finditer(pattern, code)):
            line = code[: match.start()].rpartition("\n")[2]
            if "//" in line or line.lstrip().startswith(("#", "template", "using", "*")):
                continue
            yield _described(
                part, file, operator, occurrence, code, _edit(code, operator, occurrence)
            )


def _edit(code: str, operator: str, occurrence: int) -> str:
    pattern, new = _CPP_EDITS[operator]
    match = list(re.finditer(pattern, code))[occurrence]
    return code[: match.start()] + new + code[match.end() :]


def _described(part, file, operator, occurrence, code, mutated):
    old, new = code.splitlines(), mutated.splitlines()
    (_, i1, i2, j1, j2), *_ = (
        step
        for step in difflib.SequenceMatcher(None, old, new, False).get_opcodes()
        if step[0] != "equal"
    )
    before, after = (" ".join(line.strip() for line in lines) for lines in (old[i1:i2], new[j1:j2]))
    return Mutant(part, file, i1 + 1, operator, occurrence, before, after)
