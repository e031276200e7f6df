"""Stands in for the installed client where a test needs its manners and not its figures."""
