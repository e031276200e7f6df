"""Scored tasks, each from a local file."""
