"""Tensor parallelism: one model over several processes, each with its share of every wide tensor."""
