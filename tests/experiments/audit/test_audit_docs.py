"""docs/audit.md has a row for each code in the source, with its severities, and for no other."""

from __future__ import annotations

import ast
import re

from experiments.audit.finding import SEVERITIES
from tests.experiments.driver import ROOT

ROW = re.compile(r"^\| `([a-z-]+)` \| ([a-z, ]+) \| .+ \|$", re.MULTILINE)


def in_source() -> dict[str, set[str]]:
    """Codes and severities of every Finding(...) that is written down."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "experiments").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                code, severity, *_ = (ast.literal_eval(one) for one in node.args[:2]) if node.args else ("", "")
                found.setdefault(code, set()).add(severity)
    found.pop("", None)  # of another class of that name, by keywords
    return found


def test_every_code_has_its_row_with_its_severities() -> None:
    page = {code: {*severities.split(", ")} for code, severities in ROW.findall((ROOT / "docs/audit.md").read_text())}
    assert page == in_source()
    assert len(page) > 30
    assert {one for severities in page.values() for one in severities} == {*SEVERITIES}
