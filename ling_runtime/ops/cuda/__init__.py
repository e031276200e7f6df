"""Operators in CUDA C++, compiled by nvcc when they are first asked for."""
