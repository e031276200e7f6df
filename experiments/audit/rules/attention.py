"""Can the attention backends that were chosen run here, and do they let the host run ahead.

The surprise: a draft does not take over a target's backend that it cannot use. It falls back without an error to one
that needs lengths on the host, and so brings back the wait at every step that the target's backend had done away with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.audit.finding import Finding
from experiments.audit.launch import BLOCK_FAMILY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiments.audit.launch import Launch

BLACKWELL_ONLY = ("trtllm_mla", "cutedsl_mla")
DRAFT_BACKENDS = ("flashinfer", "fa3", "fa4", "triton", "ascend", "trtllm_mha", "intel_xpu")
"""That a block draft may use."""
FALLBACK = "flashinfer"
HOST_LENGTHS = ("flashinfer",)
"""Backends whose plans are made from sequence lengths on the host."""
PAGES = {"trtllm_mla": (32, 64), "cutedsl_mla": (32, 64), "flashmla": (64,)}
"""Page sizes; any other is changed to 64."""
TRTLLM_CACHES = ("auto", "bf16", "fp8_e4m3")
TRACK_INTERVAL = 256
DRAFT_BACKEND = "--speculative-draft-attention-backend"
BACKEND = "--attention-backend"
RADIX_OFF = "--disable-radix-cache"


def needs_blackwell(launch: Launch) -> Iterator[Finding]:
    chosen = next((name for name in reversed(launch.attention_backends) if name in BLACKWELL_ONLY), None)
    if chosen is None or (launch.gpus and launch.gpus.blackwell):
        return
    there = f"the GPUs are {launch.gpus}" if launch.gpus else "no Blackwell GPU is seen or declared (engine.gpu)"
    reason = f"{chosen} runs on Blackwell only, and {there}; the server ends at once elsewhere"
    remedy = f"{BACKEND} fa3 or flashmla on Hopper; on Blackwell declare it, as engine.gpu=B200"
    yield Finding("trtllm-mla-needs-blackwell", "error", BACKEND, reason, "sglang 0.5.23 overrides", remedy)


def draft_backend(launch: Launch) -> Iterator[Finding]:
    """A block draft sees its block in both directions, which few backends can do."""
    if launch.algorithm not in BLOCK_FAMILY:
        return
    asked = launch.text(DRAFT_BACKEND)
    backend = asked or launch.attention_backends[0]
    subject = DRAFT_BACKEND if asked else BACKEND
    source = "sglang 0.5.23 speculative_hook"
    remedy = f"{DRAFT_BACKEND} triton, fa3 on Hopper or fa4 on Blackwell"
    if backend is not None and backend not in DRAFT_BACKENDS:
        reason = (
            f"a bidirectional draft cannot use {backend} and falls back to {FALLBACK}, which needs sequence lengths on "
            "the host: a wait for the GPU at every step"
        )
        yield Finding("draft-backend-fallback", "warning", subject, reason, source, remedy)
    elif backend == "trtllm_mha" and launch.draft and not launch.draft.causal:
        reason = f"takes causal or sliding drafts, and {launch.draft.name} is neither: another backend is used"
        yield Finding("draft-backend-fallback", "warning", subject, reason, source, remedy)


def host_lengths(launch: Launch) -> Iterator[Finding]:
    """One backend that wants lengths on the host is enough; the need of all is OR-ed."""
    if launch.algorithm is None:
        return
    prefill, decode = launch.attention_backends
    for flag, backend in ((BACKEND, prefill), (BACKEND, decode), (DRAFT_BACKEND, launch.text(DRAFT_BACKEND))):
        if backend in HOST_LENGTHS:
            reason = f"{backend} needs sequence lengths on the host: a wait for the GPU at every step"
            remedy = f"{flag} triton, or fa3 on Hopper"
            yield Finding("host-lengths", "warning", flag, reason, "sglang 0.5.23 needs_cpu_seq_lens", remedy)


def page_size(launch: Launch) -> Iterator[Finding]:
    asked, decode = launch.number("--page-size"), launch.attention_backends[1] or ""
    allowed = PAGES.get(decode)
    overridden = launch.overridden("page_size", by="_mla_backend_page_constraints")
    if asked and allowed and asked not in allowed and overridden:
        reason = f"{decode} has pages of {' or '.join(map(str, allowed))}; the server changes {asked} to 64"
        yield Finding("flag-overridden", "warning", "--page-size", reason, "sglang 0.5.23 overrides", "--page-size 64")


def cache_dtype(launch: Launch) -> Iterator[Finding]:
    asked = launch.text("--kv-cache-dtype") or "auto"
    if launch.attention_backends[1] == "trtllm_mla" and asked not in TRTLLM_CACHES:
        reason = f"trtllm_mla takes {', '.join(TRTLLM_CACHES)}; the server refuses {asked}"
        remedy = "--kv-cache-dtype fp8_e4m3, or leave it out"
        yield Finding("cache-dtype", "error", "--kv-cache-dtype", reason, "sglang 0.5.23 overrides", remedy)


def track_interval(launch: Launch) -> Iterator[Finding]:
    """Checkpoints of a recurrent state lie at page borders, a window apart at least."""
    if launch.target is None or not launch.target.linear_attention or launch.has(RADIX_OFF):
        return
    interval = launch.number("--mamba-track-interval") or TRACK_INTERVAL
    page = 64 if launch.attention_backends[1] in PAGES else launch.number("--page-size") or 1
    if interval % page or interval < (launch.window or 1):
        reason = f"{interval} has to be a multiple of the page ({page}) and no less than the window ({launch.window})"
        source = "sglang 0.5.23 mamba_hook"
        yield Finding("track-interval", "error", "--mamba-track-interval", reason, source, "leave it out: 256")


def overlap(launch: Launch) -> Iterator[Finding]:
    """A recurrent state in the radix cache needs the extra buffer, or the scheduler waits for every step."""
    if launch.target is None or not launch.target.linear_attention or launch.has(RADIX_OFF):
        return
    backend = launch.text("--linear-attn-backend") or "triton"
    strategy = launch.text("--mamba-radix-cache-strategy") or "auto"
    source, remedy = "sglang 0.5.23 overrides", "--disable-radix-cache, or the triton backend with strategy auto"
    if strategy == "auto" and backend != "triton" and not launch.has("--disable-overlap-schedule"):
        reason = f"{backend} has no extra buffer for the radix cache, so that the overlap schedule is turned off"
        yield Finding("overlap-off", "warning", "--linear-attn-backend", reason, source, remedy)
    if strategy == "no_buffer" and not launch.has("--disable-overlap-schedule"):
        reason = "no_buffer and the overlap schedule exclude each other; the server ends at once"
        yield Finding("overlap-off", "error", "--mamba-radix-cache-strategy", reason, source, remedy)


def radix_off(launch: Launch) -> Iterator[Finding]:
    backend = launch.text("--linear-attn-backend") or "triton"
    overlaps = not launch.has("--disable-overlap-schedule") and backend == "triton"
    if launch.has(RADIX_OFF) and launch.target and launch.target.linear_attention and overlaps:
        reason = (
            "not needed to keep the overlap schedule: a recurrent state has an extra buffer in the radix cache by now"
        )
        source = "sglang 0.5.23 overrides; post: launch command"
        yield Finding(
            "radix-cache-off", "note", RADIX_OFF, reason, source, "leave it out, or keep it as an A/B of its own"
        )


RULES = (needs_blackwell, draft_backend, host_lengths, page_size, cache_dtype, track_interval, overlap, radix_off)
