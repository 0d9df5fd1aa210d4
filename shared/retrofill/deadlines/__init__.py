"""Arming deadlines: their rows, and the hint to the watcher."""
