"""Tokens planted in environment, flags, URLs and answers are nowhere below the output directory, however a run ends."""

from __future__ import annotations

import base64
import html
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

import pytest

from analysis.__main__ import main as analysis
from tests.experiments.driver import Run, begin, fake_command, finish, small, wait_for_stage

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.process

ENVIRONMENT = {
    "HF_PLANTED_TOKEN": "planted-process-$(e)'n\"v\\<&>%é",
    "PLANTED_SSH_KEY_PASSWORD": "planted-of-two-lines-1\nplanted-of-two-lines-2",
    "PLANTED_PROXY": "http://me:planted-process-url@proxy:1/?api_key=planted-process-query",
}
SPEC = {
    "+env.PLANTED_SERVICE_SECRET": "planted-in-spec",
    "+env.PLANTED_URL": "https://me:planted-spec-url@host/?token=planted-spec-query",
}
FLAG = "planted-flag"
SECRETS = [
    ENVIRONMENT["HF_PLANTED_TOKEN"],
    *ENVIRONMENT["PLANTED_SSH_KEY_PASSWORD"].splitlines(),
    *("planted-process-url", "planted-process-query", "planted-in-spec", "planted-spec-url", "planted-spec-query"),
    FLAG,
]


def spellings() -> list[bytes]:
    texts = [
        text
        for secret in SECRETS
        for text in (
            *(secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], html.escape(secret)),
            *(quote(secret), quote(secret, safe=""), quote_plus(secret), base64.b64encode(secret.encode()).decode()),
        )
    ]
    return [text.encode() for text in [*texts, base64.b64encode(b"me:planted-spec-url").decode()]]


def assert_clean(run: Run) -> None:
    """Every file below the test's directory, whatever it is: records, logs, stores with their journals, Hydra's."""
    files = [path for path in run.directory.rglob("*") if path.is_file()]
    names = " ".join(str(path.relative_to(run.directory)) for path in files)
    places = {str(path): path.read_bytes() for path in files}
    places |= {"stdout": run.out.encode(), "stderr": run.err.encode(), "names": names.encode()}
    found = [(place, text) for place, content in places.items() for text in spellings() if text in content]
    assert not found, found[:10]
    assert not [place for place, content in places.items() if b"planted-" in content]


def overrides(*faults: str, step_ms: float = 0.2, fault_from: int = 1) -> tuple[str, ...]:
    engine = fake_command("leak", *faults, step_ms=step_ms, fault_from=fault_from)
    return (
        f"engine.command=[{','.join(engine)}]",
        f"engine.extra_args=[--admin-api-key,{FLAG}]",
        *(f"{key}='{value}'" for key, value in SPEC.items()),
    )


@pytest.fixture
def started(tmp_path: Path, checkpoint: Path) -> Callable[..., Run]:
    def run(*given: str) -> Run:
        return finish(begin(small(tmp_path, checkpoint, *given), tmp_path, **ENVIRONMENT), tmp_path, 200.0)

    return run


def stored(directory: Path, blank_store: Callable[[Path], Path]) -> Path:
    (directory / "out").mkdir()
    return blank_store(directory / "out/mlflow.db")


def test_after_a_sweep_with_a_valid_and_an_invalid_cell(
    started: Callable[..., Run], tmp_path: Path, blank_store: Callable[[Path], Path]
) -> None:
    """Through Hydra's sweeper; the invalid cell's server answers with all it knows as HTTP 500."""
    stored(tmp_path, blank_store)
    valid, invalid = overrides(), overrides("errors", fault_from=2)
    command = f"{valid[0]},{invalid[0].partition('=')[2]}"
    run = started(
        command, *valid[1:], "task=gsm8k", "task.num_questions=2", "task.num_shots=1", "tracking=mlflow", "-m"
    )
    assert run.code == 3, run.err
    assert [cell["status"] for cell in run.line["cells"]] == ["valid", "invalid"]
    assert_clean(run)
    attempt = Path(run.line["cells"][0]["record"]).parent
    for name in ("server.log", "bench.jsonl", "gate.json", "task.jsonl", "spec.yaml"):
        assert "***" in (attempt / name).read_text(), f"{name} repeats secrets, or this test proves nothing"
    assert "***" in run.record(1)["failure"]["message"]
    assert '"$PLANTED_SERVICE_SECRET"' in (attempt / "command.txt").read_text()
    (sweep,) = (tmp_path / "out").rglob("multirun.yaml")
    assert "PLANTED_SERVICE_SECRET" in sweep.read_text()
    assert not [*(tmp_path / "out").rglob("run.log")]


@pytest.mark.parametrize("stage", ["bench", pytest.param("gates", marks=pytest.mark.slow)])
def test_after_the_driver_was_killed(
    stage: str, tmp_path: Path, checkpoint: Path, blank_store: Callable[[Path], Path]
) -> None:
    """In the middle of what the server leaks; then its record is filed by somebody who knows no secret."""
    database = stored(tmp_path, blank_store)
    command = small(tmp_path, checkpoint, *overrides(step_ms=100.0), "tracking=mlflow")
    process = begin(command, tmp_path, **ENVIRONMENT)
    attempt = wait_for_stage(process, tmp_path / "out", stage, 200.0)
    while stage == "bench" and not (attempt / "requests.jsonl").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    run = finish(process, tmp_path, 200.0)
    assert analysis(["sync", str(tmp_path / "out"), "--uri", f"sqlite:///{database}"]) == 0
    assert "***" in (attempt / "server.log").read_text()
    hydra = [*(tmp_path / "out").rglob(".hydra/*.yaml")]
    assert [path.name for path in sorted(hydra)] == ["config.yaml", "overrides.yaml"]
    assert all("PLANTED_SERVICE_SECRET" in path.read_text() for path in hydra)
    assert_clean(run)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_after_an_ab(tmp_path: Path, checkpoint: Path, blank_store: Callable[[Path], Path]) -> None:
    """Its arms' logs and its decision, whose candidate differs by a token."""
    stored(tmp_path, blank_store)
    short = (
        "mode=ab",
        "study=ab",
        "ab.prompts=1",
        "ab.floor_blocks=2",
        "ab.budget_s=20",
        "gate=off",
        "tracking=mlflow",
    )
    arm = "ab.candidate=['+env.PLANTED_ARM_TOKEN=planted-of-an-arm']"
    process = begin(small(tmp_path, checkpoint, *overrides(step_ms=4.0), *short, arm), tmp_path, **ENVIRONMENT)
    run = finish(process, tmp_path, 800.0)
    assert run.code in (0, 1), run.err
    (decision,) = (tmp_path / "out/ab/decisions").glob("*/attempt-1")
    assert json.loads((decision / "decision.json").read_text())["overrides"] == ["+env.PLANTED_ARM_TOKEN=***"]
    for name in ("server-baseline.log", "server-candidate.log"):
        assert "***" in (decision / name).read_text()
    assert_clean(run)


def test_the_very_same_run_is_unmasked_where_nothing_was_planted(run_py: Callable[..., Run], tmp_path: Path) -> None:
    """Or the tests above would pass on an engine that leaks nothing."""
    os.environ["PLANTED"] = "planted-under-no-secret-name"
    try:
        run = run_py(f"engine.command=[{','.join(fake_command('leak'))}]", "gate=off")
    finally:
        del os.environ["PLANTED"]
    attempt = Path(run.line["cells"][0]["record"]).parent
    for name in ("server.log", "bench.jsonl"):
        assert "planted-under-no-secret-name" in (attempt / name).read_text()


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("postgresql+nosuch://me:planted-flag@nowhere/db", "tracking.uri"),
        pytest.param(
            "http://me:planted-flag@127.0.0.1:9/?token=planted-in-spec", "tracking.uri", marks=pytest.mark.slow
        ),
    ],
)
def test_a_store_s_address_is_refused_without_its_password(uri: str, words: str, started: Callable[..., Run]) -> None:
    run = started(f"tracking.uri='{uri}'", "tracking=mlflow")
    assert run.code == 2, run.err
    assert words in run.err
    assert_clean(run)


def test_a_composed_configuration_is_printed_without_those_of_its_files(
    started: Callable[..., Run], tmp_path: Path
) -> None:
    """No code of ours runs under --cfg."""
    preset = tmp_path / "more/experiment/secretive.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("# @package _global_\nenv:\n  SERVICE_TOKEN: planted-flag\n")
    run = started(f"hydra.searchpath=[file://{tmp_path}/more]", "experiment=secretive", "--cfg", "job")
    preset.unlink()
    assert "SERVICE_TOKEN: ***" in run.out, run.err
    assert_clean(run)


@pytest.mark.parametrize("sweep", [(), ("engine.api_key_env=planted-key-1,planted-key-2", "-m")])
def test_a_key_where_the_name_of_its_variable_belongs_is_refused_and_in_no_file(
    sweep: tuple[str, ...], started: Callable[..., Run], tmp_path: Path
) -> None:
    single = ("engine.api_key_env=planted-key-1",)
    run = started("engine=attach", "engine.url=http://127.0.0.1:9", "engine.command=[]", *(sweep or single))
    assert run.code == 2
    assert run.line["error"].startswith("engine.api_key_env: is no name of an environment variable")
    assert [*tmp_path.rglob("*.yaml")], "Hydra's files are there, and hold it not"
    assert_clean(run)


def test_a_syntax_error_of_an_override_is_explained_without_it(started: Callable[..., Run]) -> None:
    run = started("+env.HF_TOKEN='planted-flag")
    assert run.code == 2
    assert_clean(run)
