"""Machines and servers to rehearse on.

TWO_CORES has what single runs of the miniature showed on two cores with 0.6 to 1.3 cores of foreign load: steps of a
request spread by 4 %, neighbours correlated by 0.6, one request in five 10 to 20 % slower. CROWDED is `noise.fit` of
five launches, 48 requests each, beside eight busy processes, when a step took five times its time. What a launch draws
could not be told from slow drift in either and is assumed. LAUNCHES_DIFFER has what ten A/A runs of 12 to 16 blocks
showed on the same two cores with 0.4 to 1.0 cores of foreign load: their ratios spread by 1.8 %, three times what their
blocks allow, so each launch drew 1.3 %. ONE_GPU is assumed throughout, for want of a recorded run.
"""

from __future__ import annotations

from dataclasses import replace

from analysis.noise import Noise
from analysis.simulation import Server

TWO_CORES = Noise(
    white=0.02,
    slow=0.035,
    slow_s=1.5,
    drift_per_min=0.01,
    launch=0.004,
    burst_per_min=2.0,
    burst_s=3.0,
    burst_height=0.3,
)
LAUNCHES_DIFFER = replace(TWO_CORES, launch=0.013)
CROWDED = Noise(
    white=0.047,
    slow=0.12,
    slow_s=8.6,
    drift_per_min=0.26,
    launch=0.004,
    burst_per_min=0.0,
    burst_s=1.0,
    burst_height=0.0,
)
ONE_GPU = Noise(
    white=0.002,
    slow=0.002,
    slow_s=10.0,
    drift_per_min=0.0005,
    launch=0.0008,
    burst_per_min=0.2,
    burst_s=1.0,
    burst_height=0.02,
)
MINIATURE = Server(step_s=0.0095, prefill_s=0.16, accept=3.75, accept_spread=0.05, tokens=64)
CROWDED_MINIATURE = replace(MINIATURE, step_s=0.049, prefill_s=0.74)
LING_ON_GPU = Server(step_s=0.005, prefill_s=0.13, accept=3.3, accept_spread=0.08, tokens=1024)
