"""A check as JUnit XML and as a page for a reviewer: complete, well-formed, and nothing in it but what it means."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fabricate import LENGTH, cell, change, one_token_differs, output, probe, result, results
from hypothesis import given
from hypothesis import strategies as st
from junit_schema import validated

from experiments.spec import TaskSpec
from gates import byte_parity, junit, logit_digest, markdown
from gates.__main__ import main
from gates.evidence import CellEvidence
from gates.golden import Golden, Reference
from gates.hardware import Hardware
from gates.outcome import Compared, Outcome, judged
from gates.verdict import decide

HOSTILE = "</pre><script>|x|\n](javascript:) @all `\x00\x1b[31m\ud800\ufffe]]> & # <b>"
IDS = tuple(range(1, LENGTH + 1))
OURS, THEIRS = one_token_differs(17, margin=0.03)


def compared(ours=OURS, theirs=THEIRS, class_="same", **spec) -> Compared:
    golden = Golden(
        model="ling_tiny",
        revision="0123abcd",
        hardware=Hardware(name="a machine", fingerprint="ff"),
        engine=cell().engine,
        speculation=cell().speculation,
        env={},
        kernels={},
        evidence=CellEvidence(probe=ours),
    )
    return Compared(
        cell=cell(**spec), file=Path("golden.json"), reference=Reference(golden, change(class_)), live=theirs
    )


def outcome(sides: Compared, *more) -> Outcome:
    probes = sides.reference.golden.evidence.probe, sides.live
    found = [gate.compare(*probes, required=True) for gate in (byte_parity, logit_digest)]
    gates = results(*found, *more)
    return judged(decide(sides.reference.change, gates, golden="ling_tiny"), gates, sides)


def xml(of: Outcome) -> str:
    return junit.document(of, started=datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC), seconds=1.5)


def test_a_required_failure_is_a_failed_case_with_its_divergence():
    suite = validated(xml(outcome(compared())))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("6", "1", "0")
    failure = suite.find("testcase[@name='byte_parity']/failure")
    assert failure.get("message").startswith("1 of 4 prompts differ; first: p1 at 17: 18 -> 1018")
    assert re.search(r"prompt: +p1, token 17: another token", failure.text)
    assert re.search(r"after: +'1 2 3 .* 17'\nrecorded: '18'\nnow: +'1018'\nmargin: +0.03 logits", failure.text)


def test_gates_that_do_not_bind_are_skipped_and_those_that_did_not_run_are_errors():
    gates = results(
        result("byte_parity", "fail", required=False, reason="differs"),
        result("lossless", "not_applicable", required=False),
        result("task_score", "not_run", reason="no answer"),
    )
    suite = validated(xml(judged(decide(change("same"), gates), gates)))
    tags = {case.get("name"): [child.tag for child in case] for case in suite.findall("testcase")}
    assert tags["byte_parity"] == tags["lossless"] == ["skipped"]
    assert (tags["task_score"], tags["accept_drift"]) == (["error"], [])
    assert "byte_parity: fail (not required): differs" in suite.findtext("system-out")


def test_a_call_that_reached_no_gate_is_an_error_and_never_an_empty_pass():
    failed = Outcome(exit=2, reason="gate.golden: absent.json does not exist")
    suite = validated(xml(failed))
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
    assert suite.find("testcase/error").get("message") == failed.reason
    page = markdown.page(failed, [])
    assert "refused" in page
    assert "absent.json does not exist" in html.unescape(page)


@given(st.text(), st.text())
def test_no_text_breaks_the_xml(reason, name):
    broken = Outcome(exit=3, reason=reason)
    assert validated(xml(broken))
    ours, theirs = (probe(output("p1", IDS, text=text)) for text in (name, name + "x"))
    assert validated(xml(outcome(compared(ours, theirs))))


def test_the_page_says_what_was_compared_what_parted_and_what_to_do():
    page = html.unescape(markdown.page(outcome(compared()), ["gate.golden=golden.json", "+env.A=a b"]))
    assert page.startswith("## Gates rejected this build")
    assert "golden.json</code> of <code>ling_tiny</code> (weights <code>0123abcd</code>)" in page
    assert "class `same` (nothing that may change numerics is declared" in page
    assert "| `byte_parity` | **FAIL** | 1 of 4 prompts differ" in page
    assert "recorded  '18'\nnow       '1018'\nmargin    0.03 logits" in page
    assert "python -m gates check gate.golden=golden.json '+env.A=a b' --rounding declared --reason" in page
    assert "python -m gates record gate.golden=golden.json '+env.A=a b' --out golden.json" in page


def test_bits_that_no_token_shows_are_shown_as_logprobs():
    digest = output("p1", IDS).digest
    last = replace(digest[-1], bits=(digest[-1].bits[0] ^ 1, 1))
    page = markdown.page(outcome(compared(probe(), probe(output("p1", IDS, digest=(digest[0], last))))), [])
    assert "First difference that `logit_digest` sees" in page
    assert "`byte_parity` sees" not in page
    assert re.search(r"logits of the five best tokens: other bits, by up to 1\.4e-45", page)


def test_what_a_declaration_cannot_mend_is_not_offered_one():
    gates = results(result("state_pollution", "fail"))
    page = markdown.page(judged(decide(change("same"), gates), gates, compared(probe(), probe())), [])
    assert "--rounding declared" not in page
    assert "python -m gates record --out golden.json" in page


def test_a_record_with_a_task_is_taken_anew_with_it():
    assert markdown.task_overrides(None) == []
    task = TaskSpec(name="gsm8k", num_questions=500, num_shots=0)
    assert markdown.task_overrides(task) == ["task=gsm8k", "task.num_questions=500", "task.num_shots=0"]


def test_a_page_of_a_pass_offers_no_commands_and_says_when_bits_were_excused():
    same = compared(probe(), probe())
    page = markdown.page(outcome(same), [])
    assert page.startswith("## Gates passed")
    assert "### What now" not in page
    assert "Exact equality was not asked for" in page  # the fabricated results have lossless required
    gates = results(result("lossless", "not_applicable", required=False))
    exact = judged(decide(change("same"), gates), gates, same)
    assert "Exact equality was not asked for" not in markdown.page(exact, [])


@pytest.mark.parametrize("where", ["reason", "text", "command"])
def test_hostile_text_is_shown_and_does_nothing(where):
    ours = probe(output("p1", IDS, text=HOSTILE if where == "text" else "a"))
    engine = replace(cell().engine, command=("server", HOSTILE) if where == "command" else ())
    sides = compared(ours, probe(output("p1", IDS, text="b")), engine=engine)
    more = [result("accept_drift", "fail", reason=HOSTILE)] if where == "reason" else []
    found = outcome(sides, *more)
    validated(xml(found))
    page = markdown.page(found, [])
    page.encode()
    quoted = re.findall(r"<pre>([^<>]*)</pre>", page)
    assert page.count("<pre>") == page.count("</pre>") == len(quoted)
    assert "<script>" not in page
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", page)
    outside = re.sub(r"<pre>[^<>]*</pre>", "", page)
    assert "](" not in outside
    assert "@all" not in outside
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert [row.count("|") for row in rows] == [4] * 6


@given(st.text())
def test_plain_text_survives_as_text(text):
    escaped = markdown.plain(text)
    assert html.unescape(escaped) == markdown.visible(text)
    rest = re.sub(r"&#\d+;", " ", escaped)  # a reference parts its neighbours; it does not bring them together
    assert not re.search(r"[<>*`\[\]|#@$\\~\n]|://|:\w+:|\b_|_\b|^[-+=]|www\.", rest)


def test_the_files_are_written_whatever_happens(tmp_path, monkeypatch, capsys):
    step = tmp_path / "step.md"
    step.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    files = ("--junit", str(tmp_path / "new/gate.xml"), "--summary", str(tmp_path / "new/gate.md"))
    assert main(["check", "gate.golden=absent.json", *files]) == 2
    suite = validated((tmp_path / "new/gate.xml").read_text())
    assert "absent.json" in suite.find("testcase/error").get("message")
    assert step.read_text() == "before\n" + (tmp_path / "new/gate.md").read_text()
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["exit"] == 2


def test_a_place_that_takes_no_report_is_found_before_anything_starts(capsys):
    assert main(["check", "--junit", "/proc/x/gate.xml"]) == 2
    assert "--junit" in json.loads(capsys.readouterr().out.splitlines()[-1])["reason"]


def test_a_report_that_fails_does_not_end_with_the_code_of_a_reject(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(junit, "document", lambda *_, **__: 1 / 0)
    assert main(["check", "gate.golden=absent.json", "--junit", str(tmp_path / "gate.xml")]) == 3
    assert "ZeroDivisionError" in json.loads(capsys.readouterr().out.splitlines()[-1])["reason"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rounding", "declared"), "needs change.reason"),
        (("--accept-bound", "0.2"), "belongs to --rounding declared"),
        (("--rounding", "declared", "--reason", "x", "--accept-bound", "-1"), "no bound"),
        (("--rounding", "preserved", "kernels.lm_head=bf16"), "but this rounds"),
    ],
)
def test_a_declaration_that_cannot_hold_is_refused(arguments, words, capsys):
    assert main(["check", *arguments]) == 2
    assert words in json.loads(capsys.readouterr().out.splitlines()[-1])["reason"]
