"""Which implementation of each hot operator runs, and the proof that it did.

A variant declares its numerics class where it is defined; tests prove the class and gates read it. The surprise:
counting is part of choosing. An operator can only be reached through `Kernels`, so a variant that was asked for and
never ran shows zero calls instead of passing for an improvement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ling_runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

Numerics = Literal["reference", "bitwise", "rounding"]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Variant:
    """One implementation: `bitwise` gives the reference's bits, `rounding` says in `reason` why it may not."""

    operator: str
    name: str
    numerics: Numerics
    reason: str
    function: Callable[..., Any]


_VARIANTS: dict[str, dict[str, Variant]] = {}


def variant(
    operator: str, name: str = "reference", numerics: Numerics = "reference", reason: str = ""
) -> Callable[[Function], Function]:
    """Register the decorated function as variant `name` of `operator`."""
    assert (numerics == "rounding") == bool(reason), "a rounding variant says why, and no other does"

    def register(function: Function) -> Function:
        _VARIANTS.setdefault(operator, {})[name] = Variant(operator, name, numerics, reason, function)
        return function

    return register


def variants() -> tuple[Variant, ...]:
    """Every variant of every operator, reference first."""
    import ling_runtime.ops.catalogue  # noqa: F401, PLC0415 - importing it registers the operators

    return tuple(v for group in _VARIANTS.values() for v in sorted(group.values(), key=_reference_first))


class Kernels:
    """One chosen variant per operator, callable as `kernels["operator"](...)`, each with its call count."""

    def __init__(self, selection: Mapping[str, str] | None = None) -> None:
        self._chosen = {v.operator: v for v in reversed(variants()) if v.numerics == "reference"}
        for operator, name in (selection or {}).items():
            self._chosen[operator] = _find(operator, name)
        self.calls = dict.fromkeys(self._chosen, 0)
        self._counted = {operator: self._counting(operator) for operator in self._chosen}

    def __getitem__(self, operator: str) -> Callable[..., Any]:
        return self._counted[operator]

    def variant_of(self, operator: str) -> str:
        """The name of the variant that runs."""
        return self._chosen[operator].name

    def use(self, one: Variant) -> None:
        """Take a variant from outside the registry: one for training, which no server may be asked to run."""
        self._chosen[one.operator] = one
        self._counted[one.operator] = self._counting(one.operator)

    def report(self) -> list[dict[str, object]]:
        """Rows of `server_info.kernels`: operator, variant, numerics, calls since the last reset."""
        return [
            {"operator": v.operator, "variant": v.name, "numerics": v.numerics, "calls": self.calls[v.operator]}
            for v in sorted(self._chosen.values(), key=lambda v: v.operator)
        ]

    def reset(self) -> None:
        self.calls.update(dict.fromkeys(self.calls, 0))

    def _counting(self, operator: str) -> Callable[..., Any]:
        function, calls = self._chosen[operator].function, self.calls

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[operator] += 1
            return function(*args, **kwargs)

        return call


def _find(operator: str, name: str) -> Variant:
    if operator not in _VARIANTS:
        raise ConfigError(f"kernels.{operator}: unknown operator; allowed: {', '.join(sorted(_VARIANTS))}")
    if name not in _VARIANTS[operator]:
        allowed = ", ".join(_VARIANTS[operator])
        raise ConfigError(f"kernels.{operator}={name}: unknown variant; allowed: {allowed}{needs(name)}")
    return _VARIANTS[operator][name]


MACHINES = {"triton": "Triton and a CUDA device", "cuda": "nvcc and a card of compute capability 9.0 or more"}
"""What variants of these names are registered beside."""


def needs(name: str) -> str:
    """What a variant of that name may be missing for, to be said behind those that there are."""
    kind = name.partition("_")[0]
    return f"; {kind} variants are there where {MACHINES[kind]} are" if kind in MACHINES else ""


def _reference_first(candidate: Variant) -> tuple[bool, str]:
    return candidate.numerics != "reference", candidate.name
