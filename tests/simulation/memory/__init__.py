"""A small in-memory Postgres for SQLAlchemy Core.

It has READ COMMITTED, row locks, constraints, advisory locks and notifications. It supports the
statements that the services' store builds and raises ``Unsupported`` on any other.
``tests/integration/test_store_conformance*.py`` run the same tests against the real server.
"""
