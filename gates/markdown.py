"""A check as a Markdown page for the reviewer of a change: what was compared, where it parted, and what to do.

The surprise: nothing that a server or an author wrote is Markdown here. Their texts go through as characters, or a
generated "](javascript:" would be a link in somebody's pull request.
"""

from __future__ import annotations

import html
import re
import shlex
from typing import TYPE_CHECKING

from experiments.plan import label
from experiments.spec import TaskSpec
from gates.junit import place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gates.change import Change
    from gates.evidence import GateResult
    from gates.outcome import Compared, Outcome
    from gates.parting import Parting

MARKUP = re.compile(
    r"[^\w ,;=/%.()'\"?!{}+:-]"  # what begins something wherever it stands
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis begins and ends at the edge of a word
    r"|\.(?!\w)|(?<=www)\.|:(?=[\w/])"  # numbered lists; addresses; emoji and schemes
    r"|^[-+=]"  # lists and headings
)
"""Characters that go through by number; the others stay as they are, for the page is read as a file too."""

QUESTION_CHARS = 160
EXACT = {"byte_parity", "logit_digest"}
HEADLINES = {
    "passed": "Gates passed",
    "rejected": "Gates rejected this build",
    "refused": "The check was refused: configuration",
    "invalid": "The check did not come to a verdict",
}
MEANINGS = {
    "same": "nothing that may change numerics is declared, so every bit has to stay",
    "bitwise": "declared to keep every bit",
    "rounding": "rounding may differ; accept length, isolation of requests and the task have to hold",
    "speculation": "other drafts; the target's tokens have to stay",
    "model": "another model",
}


def page(outcome: Outcome, overrides: Sequence[str]) -> str:
    """`overrides`: the call's own, for the commands that a reader is offered."""
    parts = [f"## {HEADLINES[outcome.word]}", plain(outcome.reason)]
    if compared := outcome.compared:
        parts += ["### What was compared", sides(compared)]
        if outcome.bits_excused:
            parts.append(
                "**Exact equality was not asked for**: this processor computes other bits than the one the record was "
                "taken on. A change of a few bits would not show here; record and check on one kind of machine."
            )
    if outcome.gates:
        parts += ["### Gates", table(outcome.gates)]
    for parting in outcome.compared.partings() if outcome.compared else ():
        parts += [f"### First difference that `{parting.gate}` sees", divergence(parting)]
    if outcome.compared and outcome.word == "rejected":
        parts += ["### What now", advice(outcome, outcome.compared, overrides)]
    return "\n\n".join(parts) + "\n"


def sides(compared: Compared) -> str:
    golden, cell = compared.reference.golden, compared.cell
    program = f", started as {code(shlex.join(cell.engine.command))}" if cell.engine.command else ""
    taken = f"taken under {code(label(golden.speculation))} on {plain(str(golden.hardware))}"
    record = f"{code(str(compared.file))} of {code(golden.model)} (weights {code(golden.revision)}), {taken}"
    server = f"{code(cell.model.name)} under {code(label(cell.speculation))}{program}"
    return f"* record: {record}\n* server: {server}\n* change: {declared(compared.reference.change)}"


def declared(change: Change) -> str:
    parts = f": {plain('; '.join(change.parts))}" if change.parts else ""
    return f"class `{change.class_}` ({MEANINGS[change.class_]}){parts}"


def table(gates: Sequence[GateResult]) -> str:
    rows = [f"| `{gate.name}` | {result(gate)} | {plain(gate.reason)} |" for gate in gates]
    return "\n".join(["| gate | result | what it found |", "|---|---|---|", *rows])


def result(gate: GateResult) -> str:
    match gate.status, gate.required:
        case "pass", _:
            return "pass"
        case "fail", True:
            return "**FAIL**"
        case "fail", False:
            return "differs, reported only"
        case "not_run", True:
            return "**did not run**"
        case "not_applicable", True:
            return "undecided"
        case _:
            return "does not apply"


def divergence(parting: Parting) -> str:
    lines = {
        "prompt": f"{parting.prompt}, ends with {parting.question[-QUESTION_CHARS:]!r}",
        "place": f"{place(parting)}: {parting.what}",
        "after": repr(parting.context),
        "recorded": parting.recorded,
        "now": parting.live,
    }
    if parting.margin is not None:
        lines["margin"] = f"{parting.margin:.3g} logits between the record's two best tokens there"
    return pre("\n".join(f"{name:9} {text}" for name, text in lines.items()))


def advice(outcome: Outcome, compared: Compared, overrides: Sequence[str]) -> str:
    gates, task = ["python", "-m", "gates"], task_overrides(compared.reference.golden.task)
    check = shlex.join([*gates, "check", *overrides])
    record = shlex.join([*gates, "record", *overrides, *task, "--out", str(compared.file)])
    steps = ["* **Not meant?** The first difference above says where to look; the build has to change."]
    failed = {gate.name for gate in outcome.gates if gate.required and gate.status == "fail"}
    if failed <= EXACT and compared.reference.change.declared != "declared":
        steps.append(
            "* **Only rounding, and meant?** Declare it, with the reason in words. Accept length, isolation and the "
            "record's task still have to hold:\n" + pre(f'{check} --rounding declared --reason "..."')
        )
    steps.append("* **Meant to be the new truth?** Record anew, and commit the file with the reason:\n" + pre(record))
    return "\n".join(steps)


def task_overrides(task: TaskSpec | None) -> list[str]:
    """A task as one would ask for it."""
    asked = vars(task) if task else {}
    usual = vars(TaskSpec(name="gsm8k"))
    named = [f"task={task.name}"] if task else []
    return named + [f"task.{key}={value}" for key, value in asked.items() if value != usual[key]]


def plain(text: str) -> str:
    """Text as text: no character of it can begin anything in Markdown or HTML."""
    return MARKUP.sub(lambda match: f"&#{ord(match.group())};", visible(text))


def code(text: str) -> str:
    return f"<code>{plain(text)}</code>"


def pre(text: str) -> str:
    return f"<pre>{html.escape(visible(text, keep=chr(10)))}</pre>"


def visible(text: str, keep: str = "") -> str:
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)
