"""A GitHub workflow's `run:` steps, run here in their order, as a runner would.

Of GitHub's expressions it knows `${{ inputs.NAME }}`, `inputs.NAME != ''` and `always()`, and fails on any other. What
a `uses:` step brings (checkouts, Python) is for the caller to have put there.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    summary: str


def parsed(path: Path) -> dict[str, Any]:
    workflow = yaml.safe_load(path.read_text())
    return {"on" if key is True else key: value for key, value in workflow.items()}  # YAML 1.1 reads `on` as a truth


def given(workflow: dict[str, Any], values: dict[str, str]) -> dict[str, str]:
    """Inputs of a called workflow, completed and refused as GitHub does."""
    inputs = workflow["on"]["workflow_call"]["inputs"]
    assert values.keys() <= inputs.keys(), "an input that the workflow does not have"
    required = {name for name, one in inputs.items() if one.get("required")}
    assert required <= values.keys(), "a required input is missing"
    return {name: values.get(name) or one.get("default", "") for name, one in inputs.items()}


def filled(text: str, inputs: dict[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found.group(1).removeprefix("inputs.")
        assert f"inputs.{name}" == found.group(1), f"not known here: {found.group(1)}"
        return inputs[name]

    return EXPRESSION.sub(value, text)


def holds(condition: str, inputs: dict[str, str]) -> bool:
    if condition == "always()":
        return True
    name = condition.removeprefix("inputs.").removesuffix(" != ''")
    assert condition == f"inputs.{name} != ''", f"not known here: {condition}"
    return inputs[name] != ""


def run(job: dict[str, Any], inputs: dict[str, str], directory: Path) -> Done:
    code, out = 0, ""
    summary = directory / "step_summary.md"
    for step in job["steps"]:
        wanted = holds(step.get("if", "always()"), inputs)
        if "run" not in step or not wanted or (code and "if" not in step):
            continue
        assert not EXPRESSION.search(step["run"]), "text of an input would be run"
        env = {name: filled(value, inputs) for name, value in step.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=directory,
            env={**os.environ, **env, "GITHUB_STEP_SUMMARY": str(summary)},
            capture_output=True,
            text=True,
            timeout=1500,
        )
        code, out = code or done.returncode, out + done.stdout + done.stderr
    return Done(code, out, summary.read_text() if summary.exists() else "")
