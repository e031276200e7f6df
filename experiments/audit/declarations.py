"""What a source tree of SGLang declares, read as text: its server's flags, its environment variables, its overrides.

Importing SGLang would take seconds and load a CUDA runtime where there is one, in the process that is about to measure.
The surprise: flags are declared in two shapes, as annotated fields of a class and as plain `add_argument` calls, in
proportions that change from release to release; both are read everywhere, so that neither history nor layout matters.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Takes = Literal["nothing", "value", "either"]

NAME = re.compile(rb"SGL(?:ANG)?_[A-Z][A-Z0-9_]*[A-Z0-9]")
QUOTED = re.compile(rb"[\"'](SGL(?:ANG)?_[A-Z][A-Z0-9_]*[A-Z0-9])[\"']")

DEPRECATED_HELP = ("deprecated", "(deprecated", "[deprecated")


@dataclass(frozen=True, kw_only=True)
class Flag:
    name: str
    aliases: tuple[str, ...] = ()
    field: str
    """Of the server's arguments, as /server_info shows it."""
    takes: Takes = "value"
    kind: str = "str"
    """The value's type where the parser insists on it: int or float."""
    choices: tuple[str, ...] = ()
    """Empty: any value."""
    deprecated: str | None = None
    """What its authors say of it; None: nothing."""

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True, kw_only=True)
class Variable:
    name: str
    kind: str = "EnvStr"
    """Its class in SGLang's environment module."""
    deprecated: str | None = None


def flags(sources: Mapping[str, str]) -> Iterator[Flag]:
    """Of all modules given, by name; constants of one may be used in another, as choices."""
    trees = [ast.parse(text) for text in sources.values()]
    lists = dict(constant for tree in trees for constant in _string_lists(tree))
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield from filter(None, (_field(one, lists) for one in node.body))
            elif isinstance(node, ast.Call) and _called(node) == "add_argument":
                yield from _added(node, lists)


def variables(text: str) -> Iterator[Variable]:
    """Of SGLang's environment module: those declared, their former names, and those it warns of."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == "Envs":
            for statement in node.body:
                yield from _variable(statement)
        elif isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Dict):
            yield from _deprecated_variables(node.value)


def overrides(sources: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """By field of the server's arguments: the functions that may replace what was given for it."""
    found: dict[str, set[str]] = {}
    for text in sources.values():
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef):
                for field in _replaced(function):
                    found.setdefault(field, set()).add(function.name)
    return {field: frozenset(functions) for field, functions in found.items()}


def mentioned(content: bytes, *, quoted: bool) -> set[str]:
    """Variables' names in a file; in source text only quoted ones, which somebody reads and not only talks about."""
    return {name.decode() for name in (QUOTED if quoted else NAME).findall(content)}


def _field(node: ast.stmt, lists: Mapping[str, tuple[str, ...]]) -> Flag | None:
    """`name: A[type, Arg(...)] = default`, the form of 0.5.2x."""
    if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
        return None
    annotation = node.annotation
    if not (
        isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).split(".")[-1] in ("A", "Annotated")
    ):
        return None
    kind, *metadata = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    arguments = {key.arg: key.value for one in metadata if isinstance(one, ast.Call) for key in one.keywords}
    if not metadata or _truth(arguments.get("no_cli")):
        return None
    name = _text(arguments.get("cli_name")) or "--" + node.target.id.replace("_", "-")
    help_text = _text(arguments.get("help")) or next(filter(None, map(_text, metadata)), "")
    negative = ("--no-" + name.removeprefix("--"),) if "BooleanOptional" in _source(arguments.get("action")) else ()
    return Flag(
        name=name,
        aliases=(*_strings(arguments.get("aliases")), *negative),
        field=node.target.id,
        takes=_takes(_source(kind), arguments),
        kind="str" if "type_parser" in arguments else _number(_source(kind)),
        choices=() if "type_parser" in arguments else _choices(arguments.get("choices"), lists) or _literal(kind),
        deprecated=help_text if help_text.lower().startswith(DEPRECATED_HELP) else None,
    )


def _added(call: ast.Call, lists: Mapping[str, tuple[str, ...]]) -> Iterator[Flag]:
    names = [name for name in map(_text, call.args) if name and name.startswith("--")]
    if not names:
        return
    arguments = {key.arg: key.value for key in call.keywords}
    action, help_text = _source(arguments.get("action")), _text(arguments.get("help")) or ""
    told = help_text if help_text.lower().startswith(DEPRECATED_HELP) else None
    if "Deprecated" in action:
        told = told or _text(arguments.get("new_flag")) or _text(arguments.get("error_message")) or "deprecated"
    yield Flag(
        name=names[0],
        aliases=tuple(names[1:]),
        field=_text(arguments.get("dest")) or names[0].removeprefix("--").replace("-", "_"),
        takes=_takes("", arguments),
        kind=_source(arguments.get("type")) if _source(arguments.get("type")) in ("int", "float") else "str",
        choices=_choices(arguments.get("choices"), lists),
        deprecated=told,
    )


def _takes(kind: str, arguments: Mapping[str | None, ast.expr]) -> Takes:
    action, nargs = _source(arguments.get("action")), arguments.get("nargs")
    if nargs is not None and _text(nargs) in ("?", "*"):
        return "either"
    switches = "store_true" in action or "store_false" in action or "BooleanOptional" in action
    if "Deprecated" in action:
        switches = "Alias" not in action and nargs is None
    return "nothing" if switches or kind in ("bool", "Optional[bool]", "bool | None") else "value"


def _number(kind: str) -> str:
    plain = kind.removeprefix("Optional[").removesuffix("]").removesuffix(" | None")
    return plain if plain in ("int", "float") else "str"


def _choices(node: ast.expr | None, lists: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return lists.get(node.id, ()) if isinstance(node, ast.Name) else _strings(node)


def _literal(kind: ast.expr) -> tuple[str, ...]:
    for node in ast.walk(kind):
        if isinstance(node, ast.Subscript) and _source(node.value).split(".")[-1] == "Literal":
            return _strings(node.slice)
    return ()


def _variable(node: ast.stmt) -> Iterator[Variable]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    for target in targets:
        if isinstance(target, ast.Name) and isinstance(value, ast.Call):
            yield Variable(name=target.id, kind=_called(value))
            former = [_text(key.value) for key in value.keywords if key.arg == "deprecated_name"]
            yield from (Variable(name=name, deprecated=f"use {target.id}") for name in former if name)


def _deprecated_variables(table: ast.Dict) -> Iterator[Variable]:
    for key, value in zip(table.keys, table.values, strict=True):
        name = _text(key)
        if name and isinstance(value, ast.Call) and "Deprecated" in _called(value):
            told = [_text(one) for one in (*value.args, *(argument.value for argument in value.keywords))]
            yield Variable(name=name, deprecated=" ".join(filter(None, told)) or "removed without replacement")


def _replaced(function: ast.FunctionDef) -> Iterator[str]:
    """By calls of `declare_resolution`, or, where the function is a registered pass, by the dictionary it makes."""
    passes = any("post_process" in _source(one) for one in function.decorator_list)
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and _called(node) == "declare_resolution":
            yield from filter(None, (keyword.arg for keyword in node.keywords))
        elif passes and isinstance(node, ast.Return) and isinstance(node.value, ast.Dict):
            yield from filter(None, map(_text, node.value.keys))
        elif passes and isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield from filter(None, [_text(node.slice)])


def _string_lists(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _strings(node.value):
            yield node.targets[0].id, _strings(node.value)


def _strings(node: ast.expr | None) -> tuple[str, ...]:
    """Of a list, tuple or set that holds strings only."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set) and all(_text(one) is not None for one in node.elts):
        return tuple(_text(one) or "" for one in node.elts)
    return ()


def _called(call: ast.Call) -> str:
    return _source(call.func).rpartition(".")[2]


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _truth(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _source(node: ast.expr | None) -> str:
    return ast.unparse(node) if node is not None else ""
