"""Deterministic simulation of the services.

The services' real code runs one step at a time on an in-memory Kafka and Postgres with simulated
clocks.
"""
