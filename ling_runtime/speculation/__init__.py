"""Proposing tokens ahead of the target, and accepting them exactly."""
