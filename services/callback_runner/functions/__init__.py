"""Callbacks that are Python functions, each called in a process of its own."""
