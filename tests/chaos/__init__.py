"""Injects seeded faults into a running workload on real servers, then checks every promise."""
