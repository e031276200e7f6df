"""The size budget: what a reader can hold. A file that grows a second subject is split, not excused here."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(p for top in ("ling_runtime", "experiments", "gates", "analysis") for p in (ROOT / top).rglob("*.py"))
MAX_FILE, MAX_MEDIAN_FILE, MAX_FUNCTION, MAX_P90_FUNCTION = 300, 120, 60, 30


def function_lengths(tree: ast.Module) -> list[int]:
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(f.end_lineno or f.lineno) - f.lineno + 1 for f in functions]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_file_is_small_explained_and_made_of_small_functions(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says why it exists"
    assert text.count("\n") <= MAX_FILE
    assert max(function_lengths(tree), default=0) <= MAX_FUNCTION


def test_the_whole_stays_readable() -> None:
    trees = {path: ast.parse(path.read_text()) for path in SOURCES}
    lines = sorted(path.read_text().count("\n") for path in SOURCES)
    functions = sorted(length for tree in trees.values() for length in function_lengths(tree))
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
