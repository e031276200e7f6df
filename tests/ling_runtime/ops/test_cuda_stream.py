"""Products in CUDA C++ against their Triton neighbours and against exact sums, at one rank's full width."""

from __future__ import annotations

import ast
import re
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
import torch

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from ling_runtime.config import ConfigError
from ling_runtime.executor.graphs import DEVICE_VARIANTS, STREAMED_VARIANTS, best_here, device_selection
from ling_runtime.ops.cuda import build
from ling_runtime.ops.kda import KdaWeights
from ling_runtime.ops.registry import Kernels
from ling_runtime.ops.triton.kda_out import normed_linear
from ling_runtime.ops.triton.launch import pdl
from ling_runtime.ops.triton.router_norm import norm_gate

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ling_runtime.ops.triton.launch import Pdl

ROWS = (1, 2, 3, 6, 8, 9, 16, 17)
SHAPES = ((5128, 2560), (2120, 2560), (3072, 2560), (2560, 1536), (2560, 1024), (40, 256))
HEADS, WIDTH = 8, 128
MODES: tuple[Pdl, ...] = ("off", "late", "early")


@pytest.mark.skipif(build.compiler() is None, reason="needs nvcc")
@pytest.mark.whole
def test_the_library_builds_once_and_says_what_it_exports(tmp_path: Path) -> None:
    library = build.built("90", tmp_path)
    made = library.stat().st_mtime_ns
    assert build.built("90", tmp_path) == library
    assert library.stat().st_mtime_ns == made
    assert [path.name for path in tmp_path.iterdir()] == [library.name]
    symbols = library.read_bytes()
    assert b"stream_product" in symbols
    assert b"stream_gate" in symbols


def test_python_counts_as_the_kernels_do() -> None:
    """Read as text: importing the variants registers them."""
    python = (build.SOURCE.parent / "stream.py").read_text()
    kernels = "".join(path.read_text() for path in (build.SOURCE, *build.HEADERS))

    def said(name: str) -> object:
        return ast.literal_eval(re.findall(rf"^{name} = (.+)$", python, re.MULTILINE)[0])

    for name in ("WARPS", "MOST_PARTS"):
        assert re.findall(rf"constexpr int {name} = (\d+);", kernels) == [str(said(name))]
    step = 32 * int(re.findall(r"constexpr int WARPS = (\d+);", kernels)[0])
    assert said("DEPTHS") == {step * int(steps) for steps in re.findall(r"CASES\((\d+)\);", kernels)}
    assert said("GATE_DEPTHS") == {step * int(steps) for steps in re.findall(r"launch_gate<T, (\d+)>", kernels)}
    assert said("MOST_TILES") == max(int(tiles) for tiles in re.findall(r"CASE\(STEPS, (\d+)\)", kernels))


@pytest.mark.skipif(not build.obstacle(), reason="they can run here")
@pytest.mark.parametrize("operator", ["linear", "kda_window", "moe_block"])
def test_where_they_cannot_run_asking_for_them_names_what_can(operator: str) -> None:
    name = "cuda_bf16" if operator == "moe_block" else "cuda"
    with pytest.raises(ConfigError, match=rf"{operator}.*{name}.*triton"):
        Kernels({operator: name})


@pytest.mark.parametrize(
    ("card", "nvcc", "built", "why"),
    [
        (None, "nvcc", "yes", "no CUDA device"),
        ((8, 9), "nvcc", "yes", "needs? compute capability 9.0, and the card has 8.9"),
        ((9, 0), None, "yes", "no nvcc"),
        ((9, 0), "nvcc", "no", "does not build: no header"),
        ((10, 0), "nvcc", "yes", ""),
    ],
)
def test_what_stands_in_the_way_is_said_and_the_step_runs_without(
    monkeypatch: pytest.MonkeyPatch, card: tuple[int, int] | None, nvcc: str | None, built: str, why: str
) -> None:
    def library() -> object:
        if built == "no":
            raise RuntimeError("stream.cu does not build: no header")
        return object()

    monkeypatch.setattr(torch.cuda, "is_available", lambda: card is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: card)
    monkeypatch.setattr(build, "compiler", lambda: nvcc)
    monkeypatch.setattr(build, "library", library)
    build.obstacle.cache_clear()
    try:
        assert re.search(why, build.obstacle())
        assert bool(build.obstacle()) == bool(why)
        chosen = device_selection({}, best_here())
        assert chosen == DEVICE_VARIANTS | ({} if why else STREAMED_VARIANTS)
    finally:
        build.obstacle.cache_clear()


@pytest.mark.parametrize(
    ("named", "folder"),
    [("/elsewhere", "/elsewhere"), ("", "HOME/.cache"), ("here", "HOME/.cache"), (None, "HOME/.cache")],
)
def test_the_library_is_kept_where_caches_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str | None, folder: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if named is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", named)
    assert build.cache_folder() == Path(folder.replace("HOME", str(tmp_path))) / "ling_runtime"


@pytest.mark.parametrize(
    ("does", "why"),
    [("echo no header >&2; exit 1", "no header"), (r"printf '\377' >&2; exit 1", "\ufffd"), ("echo what", "what")],
    ids=["fails", "fails in another encoding", "makes nothing"],
)
def test_a_broken_compiler_says_so_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, does: str, why: str
) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\n{does}\n")
    nvcc.chmod(0o755)
    monkeypatch.setattr(build, "compiler", lambda: str(nvcc))
    with pytest.raises(RuntimeError, match=f"stream.cu does not build: {why}"):
        build.built("90", tmp_path / "cache")
    assert not any((tmp_path / "cache").iterdir())


@pytest.mark.process
def test_a_compiler_that_hangs_is_ended_with_its_passes_and_the_step_runs_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvcc, passes = tmp_path / "nvcc", tmp_path / "passes"
    nvcc.write_text(
        f"""#!/bin/sh
        while [ "$1" != -o ]; do shift; done
        echo half > "$2"
        echo half > "$TMPDIR/half"
        sleep 60 & echo $$ $! > {passes}
        wait
        """
    )
    nvcc.chmod(0o755)
    monkeypatch.setattr(build, "LIMIT_S", 1.0)
    monkeypatch.setattr(build, "compiler", lambda: str(nvcc))
    monkeypatch.setattr(build, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    build.obstacle.cache_clear()
    try:
        begun = time.monotonic()
        assert build.obstacle() == "stream.cu does not build: no end after 1 s"
        assert time.monotonic() - begun < 30, "it waited for what had the compiler's pipes"
        assert device_selection({}, best_here()) == DEVICE_VARIANTS
    finally:
        build.obstacle.cache_clear()
    assert not any((tmp_path / "cache").iterdir())
    _, alive = psutil.wait_procs(running([int(pid) for pid in passes.read_text().split()]), timeout=10)
    assert not alive


def running(pids: list[int]) -> list[psutil.Process]:
    found = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return [one for one in found if one.status() != psutil.STATUS_ZOMBIE]


def test_what_cannot_be_loaded_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho no library > "$2"\n')
    nvcc.chmod(0o755)
    monkeypatch.setattr(build, "compiler", lambda: str(nvcc))
    with pytest.raises(OSError, match=r"stream-.*\.so"):
        build.built("90", tmp_path / "cache")
    assert not any((tmp_path / "cache").iterdir())


needs_card = pytest.mark.skipif(bool(build.obstacle()), reason=build.obstacle())


def drawn(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale).bfloat16()


def off_by(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


def same_rows(run: Callable[[int], Tensor], most: int) -> None:
    """`run(count)` gives the first `count` rows, always with the same bits."""
    whole = run(most)
    for count in ROWS:
        assert torch.equal(run(count), whole[:count]), count


@needs_card
@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_products(shape: tuple[int, int], mode: Pdl) -> None:
    from ling_runtime.ops.cuda.stream import linear_cuda, streamable  # noqa: PLC0415 - only where it is registered

    weight, x = drawn(*shape, scale=0.02), drawn(max(ROWS), shape[1])
    assert streamable(x, weight)
    with pdl(mode):
        assert off_by(linear_cuda(x, weight), x.double() @ weight.double().T) < 3e-3
        same_rows(lambda count: linear_cuda(x[:count], weight), max(ROWS))


@needs_card
@pytest.mark.gpu
@pytest.mark.parametrize(("before", "after"), [(8, 0), (8, 3), (3, 0), (1, 8)], ids=str)
def test_rows_may_lie_anyhow(before: int, after: int) -> None:
    """Rows that 16 bytes at a time cannot be read of, too, and then one of them as well as several."""
    from ling_runtime.ops.cuda.stream import linear_cuda  # noqa: PLC0415 - only where it is registered

    wide, weight = drawn(6, before + 1024 + after), drawn(2560, 1024, scale=0.02)
    x = wide[:, before : before + 1024]
    want = linear_cuda(x.contiguous(), weight)
    for count in (1, 2, 6):
        assert torch.equal(linear_cuda(x[:count], weight), want[:count]), count


@needs_card
@pytest.mark.gpu
def test_a_product_follows_the_kernel_before_it() -> None:
    """Rows written by the launch in front are seen, whatever was asked for before the wait: a chain of 200 products."""
    from ling_runtime.ops.cuda.stream import linear_cuda  # noqa: PLC0415 - only where it is registered

    weights, start = [drawn(2560, 2560, scale=0.02) for _ in range(20)], drawn(6, 2560)

    def chain() -> Tensor:
        x = start
        for weight in weights * 10:
            x = linear_cuda(x, weight)
        return x

    with pdl("off"):
        want = chain()
    for mode in MODES[1:]:
        with pdl(mode):
            assert torch.equal(chain(), want), mode


@needs_card
@pytest.mark.gpu
@pytest.mark.parametrize("parts", [1, 4, 16, 32])
def test_the_output_projection_norms_by_head(parts: int) -> None:
    from ling_runtime.ops.cuda.stream import normed_linear_cuda  # noqa: PLC0415 - only where it is registered

    weights = KdaWeights(
        conv=drawn(1, 4), gate_scale=drawn(1), gate_bias=drawn(1), o_norm=drawn(1), out=drawn(2560, HEADS * WIDTH),
        lower_bound=-5.0, eps=1e-6,
    )  # fmt: skip
    gated, squares = drawn(17, HEADS * WIDTH), torch.rand(17, HEADS, parts, device=DEVICE)
    ours = partial(normed_linear_cuda, weights=weights)
    scale = (squares.double().sum(2, keepdim=True) / WIDTH + weights.eps).rsqrt()
    exact = (gated.double().view(17, HEADS, WIDTH) * scale).flatten(1) @ weights.out.double().T
    assert off_by(ours(gated, squares, rows=17), exact) < 3e-3
    assert off_by(ours(gated, squares, rows=17), normed_linear(gated, squares, weights, 17)) < 4e-3
    same_rows(lambda count: ours(gated[:count].contiguous(), squares[:count].contiguous(), rows=count), 17)
    assert not ours(gated, squares, rows=5)[5:].any()


@needs_card
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(512, 2560), (32, 256)], ids=str)
def test_the_gate_keeps_sums_and_squares(shape: tuple[int, int], dtype: torch.dtype) -> None:
    from ling_runtime.ops.cuda.stream import norm_gate_cuda  # noqa: PLC0415 - only where it is registered

    experts, inner = shape
    x, residual, norm = drawn(17, inner), drawn(17, inner), drawn(inner)
    gate = (torch.randn(experts, inner, device=DEVICE) * 0.02).to(dtype)
    ours, theirs = norm_gate_cuda(x, residual, norm, gate), norm_gate(x, residual, norm, gate)
    assert torch.equal(ours.total, theirs.total)
    assert off_by(ours.squares.sum(0), theirs.squares.sum(0)) < 1e-6
    assert off_by(ours.parts.sum(0), theirs.parts.sum(0)) < 2e-6
    scaled = ((x + residual).float() * norm.float()).bfloat16()
    assert off_by(ours.parts[0], scaled.double() @ gate.double().T) < 2e-6, "two thirds of fp32's bits are off by more"
    assert off_by(ours.squares[0], (x + residual).double().square().sum(1)) < 1e-6

    def one_tensor(count: int) -> Tensor:
        sums = norm_gate_cuda(x[:count], residual[:count], norm, gate)
        return torch.cat([sums.parts[0], sums.squares[0].unsqueeze(1), sums.total.float()], dim=1)

    same_rows(one_tensor, 17)
