"""Seeded faults over a running workload on the real servers, and the oracle that says what must hold afterwards."""
