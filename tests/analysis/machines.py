"""Machines and servers to rehearse on; the noise is what `analysis.noise.fit` read off real runs."""

from __future__ import annotations

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
LING_ON_GPU = Server(step_s=0.005, prefill_s=0.13, accept=3.3, accept_spread=0.08, tokens=1024)
