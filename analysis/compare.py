"""Cells of a study side by side, each with its ratio to the baseline.

The surprise: a ratio is there only where both cells are valid. An invalid cell keeps its row and shows its reason in
place of numbers that somebody might quote.
"""

from __future__ import annotations

import pandas as pd

from analysis.records import METRICS

FIGURES = [*METRICS, "accuracy"]
RATIOS = {"tpot_ratio": "mean_tpot_ms", "step_ratio": "step_ms", "throughput_ratio": "output_tok_s"}


def compare(records: pd.DataFrame) -> pd.DataFrame:
    """`records` as rows of `analysis.records.row`, baselines first, with the columns of RATIOS added."""
    ordered = in_order(records)
    ordered[FIGURES] = ordered[FIGURES].where(ordered["status"] == "valid")
    figures = ordered[list(RATIOS.values())].astype(float)
    named = figures.set_index(pd.MultiIndex.from_frame(ordered[["study", "name"]]))
    reference = named.reindex(pd.MultiIndex.from_frame(ordered[["study", "baseline"]])).reset_index(drop=True)
    ratios = {ratio: figures[figure] / reference[figure] for ratio, figure in RATIOS.items()}
    return ordered.astype({"questions": "Int64"}).assign(**ratios, tpot_of_step=tpot_of_step(ordered))


def tpot_of_step(cells: pd.DataFrame) -> pd.Series[float]:
    """The client's mean TPOT over the server's step time per token: 1 where nothing outside the step costs time."""
    tpot, accept, step = (cells[key].astype(float) for key in ("mean_tpot_ms", "accept_length", "server_step_ms"))
    return tpot * accept / step


def in_order(records: pd.DataFrame) -> pd.DataFrame:
    """By study, the baseline first, the others in the order they have."""
    keys = [(study, role != "baseline") for study, role in zip(records["study"], records["role"], strict=True)]
    return records.iloc[sorted(range(len(keys)), key=keys.__getitem__)].reset_index(drop=True)
