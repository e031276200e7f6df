"""The class of a change, computed from the difference of two cells and never taken on trust.

Each differing part has a class and the change takes the strongest. The surprise: equal cells still make a change (of
class `same`, or `rounding` if declared), because the code under them may differ; only an A/A run knows better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from gates.flags import SPECULATION_PREFIX, environment_class, flag_class, parse_flags

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from experiments.spec import CellSpec, EngineSpec, SpeculationSpec
    from ling_runtime.ops.registry import Variant

ChangeClass = Literal["same", "bitwise", "rounding", "speculation", "model"]
STRENGTH: tuple[ChangeClass, ...] = get_args(ChangeClass)
REFERENCE = "reference"
ROUNDING_KEYS = ("dtype", "device")
OPTIONS = ("draft_path", "acceptance", "greedy_draft", "scheduler", "sts_path", "cost_table_path")
ELSEWHERE = ("name", "extra_args", "flags", "reported")  # keys of an engine that have parts of their own


class ChangeError(ValueError):
    """A declaration that contradicts the difference: a configuration error, found before anything starts."""


@dataclass(frozen=True)
class Part:
    class_: ChangeClass
    text: str


@dataclass(frozen=True, kw_only=True)
class Change:
    class_: ChangeClass
    parts: tuple[str, ...]
    declared: Literal["preserved", "declared"] | None
    reason: str | None
    """The author's reason for declared rounding, else the registry's for its rounding variants."""


def classify(baseline: CellSpec, candidate: CellSpec, variants: Sequence[Variant]) -> Change:
    """`variants` is the kernel registry. Raises ChangeError."""
    declaration = candidate.change
    parts = tuple(_parts(baseline, candidate, variants))
    rounding = [part.text for part in parts if part.class_ == "rounding"]
    if declaration.rounding == "preserved" and rounding:
        raise ChangeError(f"change.rounding=preserved, but this rounds: {'; '.join(rounding)}")
    if declaration.rounding == "declared":
        if not declaration.reason:
            raise ChangeError("change.rounding=declared needs change.reason: say in words why the rounding may differ")
        parts = (*parts, Part("rounding", f"declared: {declaration.reason}"))
    return Change(
        class_=max((part.class_ for part in parts), key=STRENGTH.index, default="same"),
        parts=tuple(part.text for part in parts),
        declared=declaration.rounding,
        reason=declaration.reason or "; ".join(rounding) or None,
    )


def _parts(baseline: CellSpec, candidate: CellSpec, variants: Sequence[Variant]) -> Iterator[Part]:
    yield from _model_parts(baseline, candidate)
    yield from _speculation_parts(baseline.speculation, candidate.speculation)
    yield from _engine_parts(baseline, candidate)
    yield from _environment_parts(baseline.env, candidate.env)
    yield from _kernel_parts(baseline.kernels, candidate.kernels, variants)


def _model_parts(baseline: CellSpec, candidate: CellSpec) -> Iterator[Part]:
    """Another engine counts as another model: nothing about its numerics can be assumed."""
    if baseline.engine.name != candidate.engine.name:
        yield Part("model", f"engine: {baseline.engine.name} -> {candidate.engine.name}")
    for key in ("name", "path", "tokenizer_path", "revision", "weights"):
        before, after = getattr(baseline.model, key), getattr(candidate.model, key)
        if before != after:
            yield Part("model", f"model.{key}: {before} -> {after}")


def _engine_parts(baseline: CellSpec, candidate: CellSpec) -> Iterator[Part]:
    for key, before in vars(baseline.engine).items():
        after = getattr(candidate.engine, key)
        if before != after and key not in ELSEWHERE:
            class_ = "rounding" if key in ROUNDING_KEYS else flag_class(f"--{key.replace('_', '-')}")
            yield Part(class_, f"engine.{key}: {before} -> {after}")
    for name, before, after in _differences(_flags(baseline.engine), _flags(candidate.engine)):
        yield Part(flag_class(name), f"{name}: {before} -> {after}")
    yield from _reported_parts(baseline.engine.reported, candidate.engine.reported)


def _reported_parts(baseline: Mapping[str, str], candidate: Mapping[str, str]) -> Iterator[Part]:
    """Only two servers that both say what they run with can be seen to differ in it.

    Speculation and the path of the model have parts of their own.
    """
    for name, before, after in _differences(baseline, candidate) if baseline and candidate else ():
        flag = f"--{name.replace('_', '-')}"
        if not flag.startswith(SPECULATION_PREFIX):
            yield Part(flag_class(flag), f"{flag}: {before} -> {after}")


def _flags(engine: EngineSpec) -> dict[str, str]:
    return {**{f"--{name}": value for name, value in engine.flags.items()}, **parse_flags(engine.extra_args)}


def _environment_parts(baseline: Mapping[str, str], candidate: Mapping[str, str]) -> Iterator[Part]:
    for name, before, after in _differences(baseline, candidate):
        yield Part(environment_class(name), f"env.{name}: {before} -> {after}")


def _kernel_parts(
    baseline: Mapping[str, str], candidate: Mapping[str, str], variants: Sequence[Variant]
) -> Iterator[Part]:
    """Two variants keep the bits only if both have the reference's."""
    for operator, before, after in _differences(baseline, candidate, absent=REFERENCE):
        assert before is not None
        assert after is not None
        pair = [_find(variants, operator, name) for name in (before, after)]
        rounding = [variant for variant in pair if variant.numerics == "rounding"]
        why = f" ({'; '.join(variant.reason for variant in rounding)})" if rounding else ""
        yield Part("rounding" if rounding else "bitwise", f"kernels.{operator}: {before} -> {after}{why}")


def _find(variants: Sequence[Variant], operator: str, name: str) -> Variant:
    known = {variant.name: variant for variant in variants if variant.operator == operator}
    if not known:
        operators = sorted({variant.operator for variant in variants})
        raise ChangeError(f"kernels.{operator}: unknown operator; allowed: {', '.join(operators)}")
    if name not in known:
        raise ChangeError(f"kernels.{operator}={name}: unknown variant; allowed: {', '.join(known)}")
    return known[name]


def _differences(
    baseline: Mapping[str, str], candidate: Mapping[str, str], absent: str | None = None
) -> Iterator[tuple[str, str | None, str | None]]:
    for name in sorted(baseline.keys() | candidate.keys()):
        before, after = baseline.get(name, absent), candidate.get(name, absent)
        if before != after:
            yield name, before, after


def _speculation_parts(baseline: SpeculationSpec, candidate: SpeculationSpec) -> Iterator[Part]:
    """One part: the settings, and of the options of one algorithm those that differ."""
    if _resolved(baseline) == _resolved(candidate):
        return
    differing = [key for key in OPTIONS if getattr(baseline, key) != getattr(candidate, key)]
    shown = differing if baseline.algorithm == candidate.algorithm else []
    yield Part("speculation", f"speculation: {_brief(baseline, shown)} -> {_brief(candidate, shown)}")


def _resolved(speculation: SpeculationSpec) -> SpeculationSpec:
    """Draft tokens left to the default and the same number given are one setting."""
    return replace(speculation, num_draft_tokens=speculation.window)


def _brief(speculation: SpeculationSpec, shown: Sequence[str]) -> str:
    mode = speculation.verify_mode if speculation.verify_mode != "static" else None
    rows = speculation.num_draft_tokens if speculation.algorithm == "ngram" else None
    values = (speculation.num_steps, speculation.block_size, rows, mode)
    name = "-".join([speculation.algorithm, *(str(value) for value in values if value is not None)])
    return " ".join([name, *(f"{key}={getattr(speculation, key)}" for key in shown)])
