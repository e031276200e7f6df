"""The size budget: what a reader can hold. A file that grows a second subject is split, not excused here."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(p for top in ("ling_runtime", "experiments", "gates", "analysis") for p in (ROOT / top).rglob("*.py"))
MAX_FILE, MAX_MEDIAN_FILE, MAX_FUNCTION, MAX_P90_FUNCTION = 300, 120, 60, 30


@dataclass(frozen=True)
class Shape:
    explained: bool
    lines: int
    functions: tuple[int, ...]
    """Lines of each."""


@cache
def shape(path: Path) -> Shape:
    text = path.read_text()
    tree = ast.parse(text)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = tuple((f.end_lineno or f.lineno) - f.lineno + 1 for f in functions)
    return Shape(bool(ast.get_docstring(tree)), text.count("\n"), lengths)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_file_is_small_explained_and_made_of_small_functions(path: Path) -> None:
    found = shape(path)
    assert found.explained, "a module says why it exists"
    assert found.lines <= MAX_FILE
    assert max(found.functions, default=0) <= MAX_FUNCTION


def test_the_whole_stays_readable() -> None:
    lines = sorted(shape(path).lines for path in SOURCES)
    functions = sorted(length for path in SOURCES for length in shape(path).functions)
    assert lines[len(lines) // 2] <= MAX_MEDIAN_FILE
    assert functions[len(functions) * 9 // 10] <= MAX_P90_FUNCTION


def test_every_module_has_its_line_in_the_structure_page() -> None:
    page = (ROOT / "docs/structure.md").read_text()
    missing = [str(p.relative_to(ROOT)) for p in SOURCES if p.name != "__init__.py" and f"`{p.name}`" not in page]
    assert not missing


def test_no_two_test_files_share_a_name() -> None:
    """pytest imports test files by their base names."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name, count in names.items() if count > 1]
