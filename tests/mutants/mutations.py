"""The mutants of a module: copies of its text with one change.

cosmic-ray's operators change numbers, comparisons and conditions. More operators here change
labels, tables and statements.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

LEFT_OUT = (
    "core/ReplaceBinaryOperator_BitOr_",  # in these modules it joins types and sets
    "core/ReplaceComparisonOperator_Eq_Is",  # what is equal may be identical
    "core/ReplaceComparisonOperator_NotEq_IsNot",
    "core/ReplaceComparisonOperator_Is_Eq",  # and what is identical is equal
    "core/ReplaceComparisonOperator_IsNot_NotEq",
)
"""The first letters of operators with meaningless mutants."""


def mutants(source: str) -> dict[str, str]:
    """Return the texts of all mutants, each with the lines that it changes.

    If two operators make the same text, it is one mutant.
    """
    found: dict[str, str] = {}
    for text in (*_changed_conditions(source), *_changed_data(source)):
        difference = _difference(source, text)
        if not _is_about_form(source, text, difference):
            found.setdefault(text, difference)
    return found


def _is_about_form(source: str, text: str, difference: str) -> bool:
    """Return True if only an asterisk in a signature, or ``slots`` or ``frozen``, differs."""
    is_signature = text.replace("/,", "*,") == source.replace("/,", "*,")
    return is_signature or difference.startswith("@dataclass")


def _changed_conditions(source: str) -> Iterator[str]:
    nodes = list(ast_nodes(get_ast(source)))
    for operator in _operators():
        positions = sum(len(list(operator.mutation_positions(node))) for node in nodes)
        for occurrence in range(positions):
            yield mutate_code(source, operator, occurrence) or source


def _operators() -> Iterator[Any]:
    for name in operator_names():
        operator = get_operator(name)
        if not name.startswith(LEFT_OUT) and not operator.arguments():
            yield operator()


def _changed_data(source: str) -> Iterator[str]:
    """Yield the source with a changed text, without a statement, or with a changed table."""
    tree = ast.parse(source)
    ignored = {
        id(inner)
        for outer in ast.walk(tree)
        for part in _says_nothing(outer)
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        if id(node) in ignored:
            continue
        match node:
            case ast.Constant(value=str(text)) if text:
                yield _replaced(source, node, repr(text + text[:1]))
            case ast.Constant(value=bytes(label)) if label:
                yield _replaced(source, node, repr(label + label[:1]))
            case ast.Raise() | ast.Expr() | ast.Delete():
                yield _replaced(source, node, "pass")
            case ast.BinOp(op=ast.BitOr()):  # a set without one of its parts
                yield _replaced(source, node, _text(source, node.left))
                yield _replaced(source, node, _text(source, node.right))
            case ast.Dict():  # a table in which a row has the next row's value, or the one before's
                for one, other in pairwise(node.values):
                    yield _replaced(source, one, _text(source, other))
                    yield _replaced(source, other, _text(source, one))
            case _:
                pass


def _says_nothing(node: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes without effect: types, documentation, and messages for people."""
    match node:
        case ast.AnnAssign(annotation=annotation) | ast.arg(annotation=ast.AST() as annotation):
            yield annotation
        case ast.FunctionDef(returns=ast.AST() as returns):
            yield returns
        case ast.AsyncFunctionDef(returns=ast.AST() as returns):
            yield returns
        case ast.Assign(value=ast.BinOp(left=ast.Name(), right=ast.Name()) as alias):
            yield alias
        case ast.Assign(value=ast.Call(func=ast.Name(id="TypeVar" | "NewType")) as variable):
            yield variable
        case ast.Raise(exc=ast.Call(args=messages)):
            yield from messages
        case ast.Expr(value=ast.Constant()):
            yield node
        case _:
            pass


def _text(source: str, node: ast.expr) -> str:
    return ast.get_source_segment(source, node) or ""


def _replaced(source: str, node: ast.expr | ast.stmt, text: str) -> str:
    lines = source.encode().splitlines(keepends=True)
    assert node.end_lineno
    assert node.end_col_offset
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    return (before + text.encode() + after).decode()


def _difference(source: str, text: str) -> str:
    """Return the changed lines before and after, on one line."""
    lines = list(difflib.ndiff(source.splitlines(), text.splitlines()))
    removed = " ".join(line[2:].strip() for line in lines if line.startswith("- "))
    added = " ".join(line[2:].strip() for line in lines if line.startswith("+ "))
    return f"{removed} -> {added}"
