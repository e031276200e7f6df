"""`python -m experiments.compile_check`: compile every kernel of a step and of a prompt for a card that is not here.

Triton compiles for any target; only launching needs one. A stand-in driver names the target, launches are cut down to
compilation, and the step is walked once on the CPU at the real shapes with weights that nobody reads. What it finds
costs no time on a card: shared memory over the limit, code that a target does not take, kernels that add the same rows'
values in another order where a step has more rows or room for a longer context, and such that do not wait for the
kernel in front as those behind them rely on.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from experiments import allowed
from experiments.compiled_kernel import Compiled, read, several_orders
from experiments.step_block import SHARD as DRAFT_SHARD
from experiments.step_block import captured_of
from ling_runtime.arguments import kernels_of
from ling_runtime.config import WINDOW_ROWS, ConfigError, ModelConfig
from ling_runtime.draft_config import DraftConfig
from ling_runtime.draft_table import draft_tensor_specs
from ling_runtime.executor.dspark_graphs import BLOCK_VARIANTS, BlockStep, InjectStep
from ling_runtime.executor.graphs import RANK_VARIANTS, VerifyStep, device_selection, missing_variants
from ling_runtime.executor.relay import Relay
from ling_runtime.memory.caches import Caches
from ling_runtime.memory.draft import DraftPool
from ling_runtime.memory.latent import pages_for
from ling_runtime.memory.window import Window
from ling_runtime.model.dspark import Dspark
from ling_runtime.model.ling import Ling
from ling_runtime.ops.prompt import PROMPT_VARIANTS
from ling_runtime.ops.registry import Kernels
from ling_runtime.ops.triton.launch import pdl
from ling_runtime.ops.triton.variants import register
from ling_runtime.parallel.communicator import ALONE, Communicator
from ling_runtime.speculation.dspark.proposer import DsparkProposer
from ling_runtime.tensor_table import TensorSpec, tensor_specs

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARD = Path(__file__).parent.parent / "ling_runtime/checkpoints/ling_3_flash_rank_shard"
SHARED_LIMIT = {90: 232448, 100: 232448}
"""Bytes of shared memory one program may have, by compute capability."""


@dataclass(frozen=True)
class Compilation:
    kernels: list[Compiled]
    """All, the one with the most shared memory first."""
    windows: list[list[Compiled]]
    """Those of each verified window, all of which must give a row the same bits."""


class StandIn:
    """As much of a driver as compiling asks for."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:  # noqa: ARG002 - the driver's signature
        return 0


class Unread(dict[str, torch.Tensor]):
    """Weights of the right shape, of which one layer's exist at a time."""

    def __init__(self, specs: dict[str, TensorSpec]) -> None:
        super().__init__()
        self._specs = specs

    def __missing__(self, name: str) -> torch.Tensor:
        return torch.zeros(self._specs[name].shape, dtype=self._specs[name].dtype)


def one_of_each(config: ModelConfig) -> ModelConfig:
    """The fewest layers with every kind in them: one group, of which only the last has experts."""
    count = config.layer_group_size
    limits: dict[str, Any] = {f"{kind}_swiglu_limit_list": (0.0,) * count for kind in ("expert", "share_expert")}
    return replace(
        config, num_hidden_layers=count, first_k_dense_replace=count - 1, num_nextn_predict_layers=0, **limits
    )


def compiled(
    config: ModelConfig,
    draft: DraftConfig | None,
    capability: int,
    rows: list[int],
    blocks: list[int],
    modes: list[Any],
    context: int,
    prompt: int,
    chosen: dict[str, str],
    ranks: Communicator = ALONE,
) -> Compilation:
    """Every kernel that verify steps of `rows` rows, and drafts and injections of `blocks`, launch under each PDL mode,
    with variants `chosen` beside the device's, and those of a prompt of `prompt` rows where it is not 0; the process
    cannot launch any after. `config` is a rank's where there are several.
    """
    register()
    found: dict[str, Compiled] = {}
    launched: list[Compiled] = []
    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:  # noqa: ARG001
        kernel = launch(self, *args, grid=grid, warmup=True, **kwargs)
        one = found[kernel.hash] = read(self.fn.__name__, kernel)
        launched.append(one)
        return kernel

    with patch.object(JITFunction, "run", compile_only):
        driver.set_active(StandIn(capability))
        weights = Unread(tensor_specs(config))
        kernels = kernels_beside(chosen)
        model = Ling(config, weights, kernels, positions=context + 64, dtype=torch.bfloat16, ranks=ranks)
        caches = Caches(
            config, max_requests=1, pages=pages_for(context + 64), dtype=torch.bfloat16, device=torch.device("cpu")
        )
        slot = caches.reserve(context + 64)
        windows: dict[tuple[int, int, int], list[Compiled]] = defaultdict(list)
        for mode in modes:
            for window in windows_of(rows, context):
                batch, count, room = window
                relay = Relay(2, drafts=max(rows) - 1, longest=room + 64, device=torch.device("cpu"))
                step = VerifyStep(model, caches, relay, batch=batch, rows=count)
                launched.clear()
                with pdl(mode):
                    step.run()
                windows[window] += launched
            if draft is not None:
                with pdl(mode):
                    draft_and_inject(model, draft, caches, slot, blocks, context)
        if prompt := min(prompt, context):
            whole = Window(slots=(slot,), starts=(0,), rows=prompt, prompt=True)
            with torch.inference_mode():
                model(torch.zeros(prompt, dtype=torch.int64), caches.begin(whole))
    return Compilation(sorted(found.values(), key=lambda kernel: -kernel.shared), list(windows.values()))


def kernels_beside(chosen: dict[str, str]) -> Kernels:
    """The device's variants, with those `chosen` instead; ConfigError for such as a captured step cannot run."""
    register()
    kernels = Kernels(device_selection(chosen, RANK_VARIANTS | BLOCK_VARIANTS | PROMPT_VARIANTS))
    if missing := missing_variants(kernels, RANK_VARIANTS):
        raise ConfigError(f"{', '.join(missing)}: allowed: variants that take lengths from the device, as Triton's do")
    return kernels


def windows_of(rows: list[int], context: int) -> list[tuple[int, int, int]]:
    """(requests, rows of each, room for a context): all that a step's kernels could be made for besides the weights."""
    return [*((1, count, context) for count in rows), *((2, count, context) for count in rows[:1]),
            *((1, count, 0) for count in rows[-1:]), *((12, count, context) for count in rows[-1:])]  # fmt: skip


def draft_and_inject(
    model: Ling, config: DraftConfig, caches: Caches, slot: int, blocks: list[int], context: int
) -> None:
    weights = Unread(draft_tensor_specs(config, confidence=False))
    draft = Dspark(model, weights, config, positions=context + 64)
    pool = DraftPool(caches.latent, config.num_hidden_layers, draft.width)
    for drafts in blocks:
        relay = Relay(2, drafts=drafts, longest=context + 64, device=model.device)
        relay.admit(slot, caches, length=context, token=1)
        proposer = DsparkProposer(model, draft, pool, steps=drafts)
        verify = VerifyStep(model, caches, relay, batch=1, rows=drafts + 1, capture=proposer.capture)
        BlockStep(model, proposer, relay, verify).run()
        InjectStep(proposer, verify).run()


class Unheard(Communicator):
    """One of `size` ranks that nobody answers: the others change no kernel."""

    def __init__(self, size: int) -> None:
        self.size = size


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compile a step's kernels without a card.")
    add, whole = parser.add_argument, allowed.whole
    read_model, read_draft = (allowed.checkpoint(kind.from_pretrained) for kind in (ModelConfig, DraftConfig))
    add("--model-path", dest="model", type=read_model, default=str(SHARD), metavar="FOLDER")
    add("--capability", type=int, default=90, choices=sorted(SHARED_LIMIT))
    add("--rows", type=whole(1, WINDOW_ROWS), nargs="+", default=[1, 6, 17], help="of a window")
    add("--draft-path", dest="draft", type=read_draft, default=str(DRAFT_SHARD), metavar="FOLDER")
    add("--blocks", type=whole(1, WINDOW_ROWS - 1), nargs="*", default=[8, 16],
        help="drafts of a DSPARK block; empty: none")  # fmt: skip
    add("--pdl", nargs="+", default=["off", "early"], choices=["off", "late", "early"])
    add("--context", type=whole(1), default=8192)
    add("--prompt", type=whole(0), default=8192, metavar="ROWS", help="up to the context; 0: none")
    add("--kernel", nargs="*", default=[], metavar="OP=VARIANT", help="other variants of operators")
    add("--ranks", type=whole(1), default=1, metavar="N", help="one of N ranks of the model; no DSPARK then")
    options = parser.parse_args(argv)
    with allowed.naming(parser, "--kernel"):
        options.chosen = kernels_of(options.kernel)
        kernels_beside(options.chosen)
    with allowed.naming(parser, "--ranks", "; allowed: what divides all that ranks share out"):
        rank = options.model.of_rank(options.ranks)
    options.config = one_of_each(replace(rank, vocab_size=options.model.vocab_size // options.ranks))
    if options.blocks and options.ranks == 1:
        with allowed.naming(parser, "--draft-path", "; give --draft-path of this model's draft, or --blocks empty"):
            options.draft = captured_of(options.draft, options.config.num_hidden_layers)
            options.draft.check_target(options.config)
    else:
        options.draft = None
    return options


def main() -> int:
    options = arguments()
    done = compiled(
        options.config, options.draft, options.capability, options.rows, options.blocks, options.pdl,
        options.context, options.prompt, options.chosen, Unheard(options.ranks),
    )  # fmt: skip
    for kernel in done.kernels:
        print(f"{kernel.name:<18}{kernel.shared:>8} bytes shared{kernel.warps:>4} warps")
    over = [kernel for kernel in done.kernels if kernel.shared > SHARED_LIMIT[options.capability]]
    print(f"{len(done.kernels)} kernels compiled for {options.capability}, {len(over)} over the limit of shared memory")
    if apart := several_orders(done.windows):
        print(f"add a row's values in other orders in other windows: {'; '.join(apart)}")
    for kernel in (careless := [kernel for kernel in done.kernels if kernel.careless]):
        print(f"{kernel.name} under dependent launches: {kernel.careless}")
    return bool(over or apart or careless)


if __name__ == "__main__":
    raise SystemExit(main())
