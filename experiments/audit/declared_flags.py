"""The flags of SGLang's server, read from its source.

Importing SGLang would take seconds and load a CUDA runtime where there is one, in the process that is about to measure.
The surprise: flags are declared in two shapes, as annotated fields of a class and as plain `add_argument` calls, in
proportions that change from release to release; both are read everywhere, so that neither history nor layout matters.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from experiments.audit import syntax

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Takes = Literal["nothing", "value", "either"]

DEPRECATED = ("deprecated", "(deprecated", "[deprecated")
"""How the help of such a flag begins."""


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
    refused: bool = False
    """Deprecated so far that the parser ends on it."""

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


def flags(sources: Mapping[str, str]) -> Iterator[Flag]:
    """Of all modules given, by name; constants of one may be used in another, as choices."""
    trees = [ast.parse(text) for text in sources.values()]
    lists = dict(constant for tree in trees for constant in _string_lists(tree))
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield from filter(None, (_field(one, lists) for one in node.body))
            elif isinstance(node, ast.Call) and syntax.called(node) == "add_argument":
                yield from _added(node, lists)


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
    if not metadata or syntax.truth(arguments.get("no_cli")):
        return None
    name = syntax.text(arguments.get("cli_name")) or "--" + node.target.id.replace("_", "-")
    help_text = syntax.text(arguments.get("help")) or next(filter(None, map(syntax.text, metadata)), "")
    negative = (
        ("--no-" + name.removeprefix("--"),) if "BooleanOptional" in syntax.source(arguments.get("action")) else ()
    )
    return Flag(
        name=name,
        aliases=(*syntax.strings(arguments.get("aliases")), *negative),
        field=node.target.id,
        takes=_takes(syntax.source(kind), arguments),
        kind="str" if "type_parser" in arguments else _number(syntax.source(kind)),
        choices=() if "type_parser" in arguments else _choices(arguments.get("choices"), lists) or _literal(kind),
        deprecated=help_text if help_text.lower().startswith(DEPRECATED) else None,
    )


def _added(call: ast.Call, lists: Mapping[str, tuple[str, ...]]) -> Iterator[Flag]:
    names = [name for name in map(syntax.text, call.args) if name and name.startswith("--")]
    if not names:
        return
    arguments = {key.arg: key.value for key in call.keywords}
    action, help_text = syntax.source(arguments.get("action")), syntax.text(arguments.get("help")) or ""
    told = help_text if help_text.lower().startswith(DEPRECATED) else None
    if "Deprecated" in action:
        told = (
            told
            or syntax.text(arguments.get("new_flag"))
            or syntax.text(arguments.get("error_message"))
            or "deprecated"
        )
    yield Flag(
        name=names[0],
        aliases=tuple(names[1:]),
        field=syntax.text(arguments.get("dest")) or names[0].removeprefix("--").replace("-", "_"),
        takes=_takes("", arguments),
        kind=syntax.source(arguments.get("type"))
        if syntax.source(arguments.get("type")) in ("int", "float")
        else "str",
        choices=_choices(arguments.get("choices"), lists),
        deprecated=told,
        refused="error_message" in arguments,
    )


def _takes(kind: str, arguments: Mapping[str | None, ast.expr]) -> Takes:
    action, nargs = syntax.source(arguments.get("action")), arguments.get("nargs")
    if nargs is not None and syntax.text(nargs) in ("?", "*"):
        return "either"
    switches = "store_true" in action or "store_false" in action or "BooleanOptional" in action
    if "Deprecated" in action:
        switches = "Alias" not in action and nargs is None
    return "nothing" if switches or kind in ("bool", "Optional[bool]", "bool | None") else "value"


def _number(kind: str) -> str:
    plain = kind.removeprefix("Optional[").removesuffix("]").removesuffix(" | None")
    return plain if plain in ("int", "float") else "str"


def _choices(node: ast.expr | None, lists: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return lists.get(node.id, ()) if isinstance(node, ast.Name) else syntax.strings(node)


def _literal(kind: ast.expr) -> tuple[str, ...]:
    for node in ast.walk(kind):
        if isinstance(node, ast.Subscript) and syntax.source(node.value).split(".")[-1] == "Literal":
            return syntax.strings(node.slice)
    return ()


def _string_lists(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and syntax.strings(node.value):
            yield node.targets[0].id, syntax.strings(node.value)
