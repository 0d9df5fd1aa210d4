"""Deterministic simulation: the services' own code on a bus, a store and clocks of memory, one step at a time."""
