"""A small Kafka in memory: transactions, read_committed, fencing and consumer groups, behind the clients' interface.

``tests/integration/test_bus_conformance.py`` holds it to the real broker.
"""
