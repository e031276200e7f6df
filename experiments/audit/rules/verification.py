"""What becomes of a verify step: kernels and graphs that cannot run as asked, rings too short, heads not built.

The surprise: each of these switches is real and honoured somewhere. It is the company it is in that turns it off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.audit.finding import Finding
from experiments.audit.launch import BLOCK_FAMILY, RAGGED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiments.audit.launch import Launch

FUSED_KDA = "SGLANG_OPT_FUSED_KDA_VERIFY"
GLUE = "SGLANG_ENABLE_METADATA_GLUE_GRAPH"
SIMULATION = "SGLANG_SIMULATE_ACC_LEN"
DECODE_RING = "--enable-linear-replayssm"
RING = "--enable-linear-replayssm-spec"
RING_LENGTH = "--linear-replayssm-cache-len"
DEFAULT_RING = 16
FEWEST_FUSED_ROWS = 3
UNGLUED = ("--enable-lora", "--lora-paths", "--enable-two-batch-overlap", "--enable-pdmux")
RING_VERIFIERS = ("triton", "nv_cutedsl")


def fused_kda_verify(launch: Launch) -> Iterator[Finding]:
    if not launch.enabled(FUSED_KDA):
        return
    for reason, remedy in _unfused(launch):
        yield Finding("fused-kda-verify-off", "warning", FUSED_KDA, reason, "sglang 0.5.23 kda_backend", remedy)


def glue_graph(launch: Launch) -> Iterator[Finding]:
    if not launch.enabled(GLUE):
        return
    source = "sglang 0.5.23 decode_cuda_graph_runner"
    if launch.algorithm in BLOCK_FAMILY:
        reason = f"turned off under {launch.algorithm}, whose verify plans are made anew on the host at every step"
        yield Finding("glue-graph-off", "warning", GLUE, reason, source, "leave it out; it serves NEXTN")
    for flag in filter(launch.has, UNGLUED):
        reason = f"never used beside {flag}: every step prepares its metadata eagerly"
        yield Finding("glue-graph-off", "warning", GLUE, reason, source, f"leave out {flag} or the variable")


def ring_length(launch: Launch) -> Iterator[Finding]:
    """The ring holds a verify window twice over, and its index is a mask."""
    if not launch.has(RING) or (launch.target and not launch.target.linear_attention) or launch.window is None:
        return
    length, least = launch.number(RING_LENGTH) or DEFAULT_RING, 2 * launch.window
    wanted = 1 << (least - 1).bit_length()
    if length < least or length & (length - 1):
        given = f"{length}" if launch.has(RING_LENGTH) else f"{length} (the default)"
        reason = f"{given} is no power of two of at least twice the window of {launch.window}; the server ends at once"
        source = "sglang 0.5.23 memory_pool: spec-verify ring"
        yield Finding("ring-length", "error", RING_LENGTH, reason, source, f"{RING_LENGTH} {wanted}")


def ring_unused(launch: Launch) -> Iterator[Finding]:
    if launch.has(RING_LENGTH) and not (launch.has(RING) or launch.has(DECODE_RING)):
        reason = f"without effect: there is no ring without {RING} or {DECODE_RING}"
        source = "sglang 0.5.23 memory_pool"
        yield Finding("flag-without-effect", "warning", RING_LENGTH, reason, source, f"leave it out, or add {RING}")


def ring_refused(launch: Launch) -> Iterator[Finding]:
    if not launch.has(RING):
        return
    source = "sglang 0.5.23 attention_hook"
    if launch.topk != 1:
        reason = f"replays a chain, and --speculative-eagle-topk {launch.topk} makes a tree; the server ends at once"
        yield Finding("ring-refused", "error", RING, reason, source, "--speculative-eagle-topk 1")
    if launch.has(DECODE_RING):
        reason = f"shares its storage with {DECODE_RING}; the server takes one of them"
        yield Finding("ring-refused", "error", RING, reason, source, f"leave out {DECODE_RING}")
    verifier = launch.text("--linear-attn-verify-backend")
    if launch.ragged != "static" and not (launch.algorithm in BLOCK_FAMILY and verifier in RING_VERIFIERS):
        reason = f"with {RAGGED}={launch.ragged} it takes a block draft and a verify kernel that writes the ring"
        yield Finding("ring-refused", "error", RING, reason, source, "--linear-attn-verify-backend triton")


def confidence_head(launch: Launch) -> Iterator[Finding]:
    if launch.algorithm == "DSPARK" and RAGGED not in launch.env:
        reason = "the default mode is static: no confidence head is built, and every row of a block is verified"
        remedy = "speculation.verify_mode=compact, with cost table and temperatures, or =static to say so"
        yield Finding("confidence-head-absent", "note", RAGGED, reason, "sglang 0.5.23 ragged_verify", remedy)


def simulated(launch: Launch) -> Iterator[Finding]:
    value = launch.env.get(SIMULATION)
    try:
        length = float(value) if value else -1.0
    except ValueError:
        return
    if length <= 0:
        return
    source = "sglang 0.5.23 spec_utils"
    reason = f"accept length is set to {length:g} and not measured; what the server says means nothing"
    yield Finding("acceptance-simulated", "note", SIMULATION, reason, source, "leave it out to measure")
    if launch.window and length > launch.window:
        reason = f"{length:g} tokens a step cannot come out of a window of {launch.window} rows; the server clamps it"
        yield Finding("accept-length-impossible", "error", SIMULATION, reason, source, f"at most {launch.window}")


def _unfused(launch: Launch) -> Iterator[tuple[str, str]]:
    """Why the fused kernel would not run, and what lets it."""
    if launch.algorithm is None:
        yield "nothing is verified without speculation", "a --speculative-algorithm, or leave it out"
        return
    if launch.target and not launch.target.linear_attention:
        yield f"{launch.target.name} has no KDA layer", "leave it out"
    if launch.algorithm in BLOCK_FAMILY and launch.ragged != "static":
        yield (
            f"not used with ragged verify ({RAGGED}={launch.ragged})",
            "speculation.verify_mode=static, or leave it out",
        )
    if launch.topk != 1:
        yield f"takes chains, and --speculative-eagle-topk is {launch.topk}", "--speculative-eagle-topk 1"
    if launch.window and launch.window < FEWEST_FUSED_ROWS:
        yield f"takes {FEWEST_FUSED_ROWS} rows and more, and the window is {launch.window}", "a longer draft"
    base = launch.text("--linear-attn-backend") or "triton"
    decode = launch.text("--linear-attn-decode-backend") or base
    verifier = launch.text("--linear-attn-verify-backend") or ("flashinfer" if decode == "flashinfer" else "triton")
    if verifier != "triton":
        yield f"is a Triton kernel, and verification runs on {verifier}", "--linear-attn-verify-backend triton"


RULES = (fused_kda_verify, glue_graph, ring_length, ring_unused, ring_refused, confidence_head, simulated)
