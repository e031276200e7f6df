"""What a host has to spare is counted step by step: how long it waited, and whether the device had to wait for it."""

from __future__ import annotations

from ling_runtime.executor.slack import Slack


def test_waits_and_dry_steps_are_counted() -> None:
    slack = Slack()
    for wait, dry in ((2.0, False), (0.5, False), (0.004, True)):
        slack.note(wait, dry=dry)
    report = slack.report()
    assert (report["count"], report["dry"], report["least_ms"]) == (3, 1, 0.004)
    assert report["total_s"] * 1e3 == 2.504
    assert sum(report["buckets"]) == 3
    assert report["buckets"][0] == 1, "what is below the first edge"


def test_nothing_seen_is_no_figure() -> None:
    assert Slack().report()["least_ms"] is None
