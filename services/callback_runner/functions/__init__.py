"""Callbacks that are Python functions, each called in its own process."""
