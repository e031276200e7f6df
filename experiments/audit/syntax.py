"""Python source as a tree, and the few questions that are asked of it. Nothing here is ever run."""

from __future__ import annotations

import ast


def called(call: ast.Call) -> str:
    """The function's last name."""
    return source(call.func).rpartition(".")[2]


def text(node: ast.expr | None) -> str | None:
    """Of a string constant; None for all else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def truth(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def source(node: ast.expr | None) -> str:
    return ast.unparse(node) if node is not None else ""


def strings(node: ast.expr | None) -> tuple[str, ...]:
    """Of a list, tuple or set that holds strings only."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set) and all(text(one) is not None for one in node.elts):
        return tuple(text(one) or "" for one in node.elts)
    return ()
