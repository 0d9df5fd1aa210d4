"""A small in-memory Kafka behind the clients' interface.

It has transactions, read_committed, fencing and consumer groups.
``tests/integration/test_bus_conformance.py`` runs the same tests against the real broker.
"""
