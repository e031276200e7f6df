"""Where and beside whom a study was measured: the environment that its records share, and each cell's own company.

The surprise: what differs between records of one study is listed and not averaged away. Two commits or two machines in
one table are the first thing that a reader should see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.report.markup import tag
from analysis.report.table import facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup

    from analysis.dossier import Study

    Record = Mapping[str, Any]

KEYS = ("host", "hardware", "cpu", "cores", "python")


def environment(study: Study) -> Markup:
    known = [found for one in (*study.cells, *study.decisions) if (found := one.record.get("environment"))]
    entries = {key: differing([str(one.get(key)) for one in known]) for key in KEYS}
    entries["commit"] = differing([commit(one) for one in known])
    names = dict.fromkeys(name for one in known for name in one.get("packages", {}))
    entries |= {name: differing([str(one.get("packages", {}).get(name)) for one in known]) for name in names}
    rulers = [one.record["ruler"] for one in study.cells if one.record.get("ruler")]
    entries |= {key: differing([str(ruler.get(key)) for ruler in rulers]) for key in ("harness", "dataset", "load")}
    return tag("section", tag("h3", "Environment"), facts(entries))


def differing(values: Sequence[str]) -> str:
    """One value, or all of them with the number of records that have each."""
    counts = {value: values.count(value) for value in dict.fromkeys(values)}
    return next(iter(counts), "") if len(counts) < 2 else "; ".join(f"{value} ({n}x)" for value, n in counts.items())


def commit(one: Record) -> str:
    return f"{one.get('git_commit')}{' with changes' if one.get('git_dirty') else ''}"


def load(record: Record) -> dict[str, str | None]:
    """Who else was busy while it was measured, and how the GPUs were."""
    seen = (record.get("environment") or {}).get("load") or record.get("load")
    if not seen:
        return {}
    averages = ", ".join(f"{value:.1f}" for value in seen.get("load_average", ()))
    entries: dict[str, str | None] = {
        "foreign load": f"{seen['foreign_cores']:.2f} cores" + (f" (load average {averages})" if averages else "")
    }
    for gpu in seen.get("gpus", ()):
        entries[f"GPU {gpu['index']}"] = ", ".join(filter(None, [gpu["name"], now(gpu)]))
    return entries | telemetry(seen.get("telemetry") or {})


def now(gpu: Mapping[str, str]) -> str:
    units = {"clocks.sm": "MHz SM", "clocks.mem": "MHz memory", "temperature.gpu": "C", "memory.used": "MiB in use"}
    return ", ".join(f"{gpu[key]} {unit}" for key, unit in units.items() if gpu.get(key))


def telemetry(seen: Record) -> dict[str, str | None]:
    """Least, mean and most of what was sampled while the cell was measured."""
    entries: dict[str, str | None] = {}
    for gpu in seen.get("gpus", ()):
        spans = [f"{name} {spread(span)}" for name, span in gpu["figures"].items()]
        entries[f"GPU {gpu['index']}, {gpu['samples']} samples"] = "; ".join([*spans, *gpu["throttled"]])
    foreign = [f"{one['name']} (pid {one['pid']}, {one['used_mib']} MiB)" for one in seen.get("foreign", ())]
    return entries | {"foreign GPU processes": "; ".join(foreign) or ("none seen" if seen.get("gpus") else None)}


def spread(span: Mapping[str, float]) -> str:
    return f"{span['min']:g} to {span['max']:g} (mean {span['mean']:.4g})"
