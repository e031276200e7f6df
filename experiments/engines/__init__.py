"""Engines: the kinds of server that a cell can be measured on, one small file each."""
