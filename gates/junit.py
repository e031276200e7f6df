"""A check as JUnit XML, which every CI system shows: one test case per gate, a required failure with its divergence.

The surprise: text of a model goes into it, and XML forbids characters that models write. They are shown by their code.
"""

from __future__ import annotations

import platform
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from gates.evidence import GateResult
    from gates.outcome import Outcome
    from gates.parting import Parting

FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
CLASSNAME = "gates"


def document(outcome: Outcome, *, started: datetime, seconds: float) -> str:
    suite = ET.Element("testsuite", id="0", package=CLASSNAME, name=title(outcome))
    suite.set("timestamp", started.strftime("%Y-%m-%dT%H:%M:%S"))
    suite.set("hostname", platform.node() or "localhost")
    suite.append(properties(outcome))
    cases = [case(gate, outcome) for gate in outcome.gates] or [unreached(outcome)]
    suite.extend(cases)
    ET.SubElement(suite, "system-out").text = allowed("\n".join(told(gate) for gate in outcome.gates))
    ET.SubElement(suite, "system-err").text = "" if outcome.verdict else allowed(outcome.reason)
    kinds = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {name: sum(one.find(tag) is not None for one in cases) for name, tag in kinds.items()}
    for name, count in {"tests": len(cases), **counts}.items():
        suite.set(name, str(count))
    suite.set("time", f"{seconds:.3f}")
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def title(outcome: Outcome) -> str:
    return f"gates: {outcome.compared.cell.model.name}" if outcome.compared else "gates"


def properties(outcome: Outcome) -> ET.Element:
    element = ET.Element("properties")
    values = {"verdict": outcome.word, "reason": outcome.reason, "exit": str(outcome.exit)}
    if compared := outcome.compared:
        change, golden = compared.reference.change, compared.reference.golden
        values |= {"golden": str(compared.file), "weights": golden.revision, "hardware": str(golden.hardware)}
        values |= {"class": change.class_, "parts": "; ".join(change.parts)}
    for name, value in values.items():
        ET.SubElement(element, "property", name=name, value=allowed(value))
    return element


def case(gate: GateResult, outcome: Outcome) -> ET.Element:
    element = ET.Element("testcase", classname=CLASSNAME, name=gate.name, time="0.000")
    if gate.required and gate.status == "fail":
        found = [one for one in outcome.compared.partings() if one.gate == gate.name] if outcome.compared else []
        failure = ET.SubElement(element, "failure", type=gate.name, message=allowed(gate.reason))
        failure.text = allowed("\n\n".join([gate.reason, *map(report, found)]))
    elif gate.required and gate.status == "not_run":
        ET.SubElement(element, "error", type="not_run", message=allowed(gate.reason)).text = allowed(gate.reason)
    elif gate.status != "pass":
        ET.SubElement(element, "skipped", message=allowed(told(gate)))
    return element


def unreached(outcome: Outcome) -> ET.Element:
    """The call itself, where it ended before the gates."""
    element = ET.Element("testcase", classname=CLASSNAME, name="check", time="0.000")
    ET.SubElement(element, "error", type=outcome.word, message=allowed(outcome.reason)).text = allowed(outcome.reason)
    return element


def told(gate: GateResult) -> str:
    need = "required" if gate.required else "not required"
    return f"{gate.name}: {gate.status} ({need}): {gate.reason}"


def report(parting: Parting) -> str:
    """A divergence as lines of text; what a server wrote is quoted."""
    margin = "" if parting.margin is None else f"\nmargin:   {parting.margin:.3g} logits between the record's two best"
    return (
        f"prompt:   {parting.prompt}, {place(parting)}: {parting.what}\n"
        f"after:    {parting.context!r}\n"
        f"recorded: {parting.recorded}\n"
        f"now:      {parting.live}{margin}"
    )


def place(parting: Parting) -> str:
    return "all tokens equal" if parting.position is None else f"token {parting.position}"


def allowed(text: str) -> str:
    return FORBIDDEN.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
