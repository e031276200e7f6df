"""The flags of replayed steps: what they say of CUDA graphs, and which of them go together.

A command line tells all of it, so what cannot be is refused before weights are read or drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ling_runtime.config import WINDOW_ROWS, ConfigError
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.executor.switches import Switches
from ling_runtime.speculative_flags import SIMULATED_VARIABLE, eager

if TYPE_CHECKING:
    from ling_runtime.arguments import ServerConfig

FLAGS = (
    "pdl",
    "graph_memory_mib",
    "seq_lens_pin",
    "fused_verify_extend",
    "disable_draft_extend_cuda_graph",
    "glue_graph",
    "result_ring",
)


def check(config: ServerConfig) -> None:
    """ConfigError for flags of replayed steps where there are none, and for such as exclude each other."""
    if config.device != "cuda" or config.disable_cuda_graph:
        refuse(config)
        return
    if config.seq_lens_pin and config.disable_overlap_schedule:
        raise ConfigError(
            "--seq-lens-pin: in turn each step is read before the next anyway; allowed without "
            "--disable-overlap-schedule"
        )
    algorithm = config.speculative_algorithm
    settings(config).check_switches(drafting=algorithm == "NEXTN", blocks=algorithm == "DSPARK")
    check_window(config)


def check_window(config: ServerConfig) -> None:
    """ConfigError for more drafts than a recorded window holds; asked again when the draft has said its block size."""
    blocks = config.speculative_algorithm == "DSPARK"
    drafts = config.speculative_dspark_block_size if blocks else config.speculative_num_steps
    if drafts is None or drafts < WINDOW_ROWS or eager(config):
        return
    flag = "--speculative-dspark-block-size" if blocks else "--speculative-num-steps"
    raise ConfigError(f"{flag} {drafts}: allowed where steps are CUDA graphs: 1 to {WINDOW_ROWS - 1}")


def refuse(config: ServerConfig) -> None:
    """ConfigError where a flag of replayed steps was given."""
    values = {f"--{name.replace('_', '-')}": getattr(config, name) for name in FLAGS}
    given = [flag if value is True else f"{flag} {value}" for flag, value in values.items() if value]
    if config.simulated_accept_length is not None:
        given.append(SIMULATED_VARIABLE)
    if given:
        raise ConfigError(f"{', '.join(given)}: only where steps are CUDA graphs (--device cuda)")


def settings(config: ServerConfig) -> GraphSettings:
    return GraphSettings(
        overlap=not config.disable_overlap_schedule,
        seq_lens_pin=config.seq_lens_pin,
        pdl=config.pdl,
        memory_mib=config.graph_memory_mib,
        simulated_accept_length=config.simulated_accept_length,
        switches=Switches(
            fused_verify_extend=config.fused_verify_extend,
            extend_graph=not config.disable_draft_extend_cuda_graph,
            glue_graph=None if config.glue_graph is None else config.glue_graph == "on",
            result_ring=config.result_ring,
        ),
    )
