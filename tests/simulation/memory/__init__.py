"""A small Postgres in memory for SQLAlchemy Core: READ COMMITTED, row locks, constraints, advisory locks, notifications.

It interprets the statements that the services' store really builds and raises ``NotImplementedError`` on any other.
``tests/integration/test_store_conformance.py`` holds it to the real server.
"""
