"""Clients that speak the engines' HTTP protocol."""
