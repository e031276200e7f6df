"""What a calibration shows to people: tables by position, and the reliability diagram."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from analysis.calibration import confidence_table, cost_table
from analysis.reliability import LARGEST, NAMESPACE, PANEL, reliability_svg

HALF = [{"predicted": 0.25, "observed": 0.5, "count": 30}, {"predicted": 0.75, "observed": 1.0, "count": 10}]
TRUE = [{"predicted": 0.5, "observed": 0.5, "count": 40}]
STS = {
    "temperatures": [1.5, 2.0],
    "ece_before": [0.25, 0.5],
    "ece_after": [0.0, 0.125],
    "conditional_ece_before": [0.25, 0.25],
    "conditional_ece_after": [0.0, 0.0],
    "reliability_before": [HALF, HALF],
    "reliability_after": [TRUE, TRUE],
}
COSTS = {
    "bias_seconds": 0.004,
    "bs_probes": [1, 2],
    "alpha_seconds": [0.0, 0.001],
    "m_probes": [1, 7],
    "theta_seconds": [0.0, 0.006],
}


def cells(table) -> list[list[str]]:
    console = Console(width=150)
    with console.capture() as captured:
        console.print(table)
    return [[part.strip() for part in line.split("│")[1:-1]] for line in captured.get().splitlines() if "│" in line]


def test_errors_of_each_position_and_their_mean():
    assert cells(confidence_table("d", STS)) == [
        ["1", "1.50", "0.2500", "0.0000", "0.2500", "0.0000"],
        ["2", "2.00", "0.5000", "0.1250", "0.2500", "0.0000"],
        ["mean", "", "0.3750", "0.0625", "0.2500", "0.0000"],
    ]


def test_step_times_are_the_table_s_own():
    """A window of 3: one request 4, 5, 6 ms; two start at 2 rows, one of which is another request's."""
    assert cells(cost_table("d", COSTS, window=3)) == [
        ["1", "4.00", "5.00", "6.00", "1.000"],
        ["2", "6.00", "8.00", "10.00", "1.000"],
    ]


@pytest.fixture
def drawing() -> ET.Element:
    return ET.fromstring(reliability_svg("dspark-2 & <more>", STS))


def test_a_panel_for_each_position_with_both_curves(drawing):
    panels = drawing.findall(f"{{{NAMESPACE}}}g")
    assert len(panels) == 2
    before, after = panels[0].findall(f"{{{NAMESPACE}}}polyline")
    assert before.get("points") == f"{PANEL / 4},{PANEL / 2} {0.75 * PANEL},0.0"
    assert after.get("points") == f"{PANEL / 2},{PANEL / 2}"
    assert panels[1].find(f"{{{NAMESPACE}}}text").text == "k = 2, T = 2.00, ECE 0.500 to 0.125"


def test_a_circle_is_as_large_as_its_share(drawing):
    circles = drawing.find(f"{{{NAMESPACE}}}g").findall(f"{{{NAMESPACE}}}circle")
    assert [float(circle.get("r")) for circle in circles] == [
        pytest.approx(LARGEST * share**0.5, abs=0.06) for share in (0.75, 0.25, 1.0)
    ]
