"""The environment variables that SGLang reads, and the arguments that it replaces, read from its source.

The surprise: most variables are declared in one module, and more than a hundred are not. A name in quotes, anywhere in
the package, counts as known.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.audit import syntax

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAME = re.compile(rb"SGL(?:ANG)?_[A-Z][A-Z0-9_]*[A-Z0-9]")
QUOTED = re.compile(rb"[\"'](SGL(?:ANG)?_[A-Z][A-Z0-9_]*[A-Z0-9])[\"']")


@dataclass(frozen=True, kw_only=True)
class Variable:
    name: str
    kind: str = "EnvStr"
    """Its class in SGLang's environment module."""
    deprecated: str | None = None


def variables(text: str) -> Iterator[Variable]:
    """Of SGLang's environment module: those declared, their former names, and those it warns of."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == "Envs":
            for statement in node.body:
                yield from _variable(statement)
        elif isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Dict):
            yield from _deprecated_variables(node.value)


def mentioned(content: bytes, *, quoted: bool) -> set[str]:
    """Variables' names in a file; in source text only quoted ones, which somebody reads and not only talks about."""
    return {name.decode() for name in (QUOTED if quoted else NAME).findall(content)}


def overrides(sources: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """By field of the server's arguments: the functions that may replace what was given for it."""
    found: dict[str, set[str]] = {}
    for text in sources.values():
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef):
                for field in _replaced(function):
                    found.setdefault(field, set()).add(function.name)
    return {field: frozenset(functions) for field, functions in found.items()}


def _variable(node: ast.stmt) -> Iterator[Variable]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    for target in targets:
        if isinstance(target, ast.Name) and isinstance(value, ast.Call):
            yield Variable(name=target.id, kind=syntax.called(value))
            former = [syntax.text(key.value) for key in value.keywords if key.arg == "deprecated_name"]
            yield from (Variable(name=name, deprecated=f"use {target.id}") for name in former if name)


def _deprecated_variables(table: ast.Dict) -> Iterator[Variable]:
    for key, value in zip(table.keys, table.values, strict=True):
        name = syntax.text(key)
        if name and isinstance(value, ast.Call) and "Deprecated" in syntax.called(value):
            told = [syntax.text(one) for one in (*value.args, *(argument.value for argument in value.keywords))]
            yield Variable(name=name, deprecated=" ".join(filter(None, told)) or "removed without replacement")


def _replaced(function: ast.FunctionDef) -> Iterator[str]:
    """By calls of `declare_resolution`, or, where the function is a registered pass, by the dictionary it makes."""
    passes = any("post_process" in syntax.source(one) for one in function.decorator_list)
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and syntax.called(node) == "declare_resolution":
            yield from filter(None, (keyword.arg for keyword in node.keywords))
        elif passes and isinstance(node, ast.Return) and isinstance(node.value, ast.Dict):
            yield from filter(None, map(syntax.text, node.value.keys))
        elif passes and isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield from filter(None, [syntax.text(node.slice)])
