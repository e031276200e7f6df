"""Temperatures from samples, and what they are worth on requests that they have not seen.

Half of the requests fit, the other half is judged. The surprise: whole requests are divided, not steps, because the
steps of one request resemble each other.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ling_runtime.config import ConfigError
from ling_runtime.speculation.dspark.calibration import (
    conditional_errors_of,
    confidences,
    errors_of,
    fit,
    reliability,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_runtime.calibration.samples import Samples


def fitted(samples: Samples, dataset: str) -> dict[str, Any]:
    """The content of the artifact: temperatures, and errors on the half that was held out."""
    even = samples.request % 2 == 0
    seen, held_out = samples.of_requests(even), samples.of_requests(~even)
    if not len(seen.raw) or not len(held_out.raw):
        raise ConfigError("--samples: needs two requests at least, one to fit and one to judge")
    found = fit(seen.raw, seen.correct)
    plain = [1.0] * len(found.temperatures)
    return {
        "temperatures": list(found.temperatures),
        "dataset": dataset,
        "num_samples": len(seen.raw),
        "held_out_samples": len(held_out.raw),
        "ece_before": list(errors_of(held_out.raw, held_out.correct, plain)),
        "ece_after": list(errors_of(held_out.raw, held_out.correct, found.temperatures)),
        "conditional_ece_before": list(conditional_errors_of(held_out.raw, held_out.correct, plain)),
        "conditional_ece_after": list(conditional_errors_of(held_out.raw, held_out.correct, found.temperatures)),
        "reliability_before": _reliability(held_out, plain),
        "reliability_after": _reliability(held_out, found.temperatures),
    }


def shown(artifact: dict[str, Any]) -> str:
    """One line a position."""
    keys = ("temperatures", "ece_before", "ece_after", "conditional_ece_before", "conditional_ece_after")
    columns = zip(*(artifact[key] for key in keys), strict=True)
    lines = [
        f"{k:>5}  {t:11.3f}  {a:10.4f}  {b:9.4f}  {c:11.4f}  {d:10.4f}" for k, (t, a, b, c, d) in enumerate(columns, 1)
    ]
    heading = "draft  temperature  ECE before  ECE after  own, before  own, after"
    counts = f"fitted on {artifact['num_samples']} steps, judged on {artifact['held_out_samples']} of other requests"
    return "\n".join([heading, *lines, counts])


def _reliability(samples: Samples, temperatures: Sequence[float]) -> list[list[dict[str, float]]]:
    """For each position, the reliability table of the product up to it."""
    products = confidences(samples.raw, temperatures).cumprod(dim=1)
    columns = zip(products.unbind(1), samples.correct.unbind(1), strict=True)
    return [[asdict(row) for row in reliability(predicted, observed)] for predicted, observed in columns]
