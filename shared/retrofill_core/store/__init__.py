"""Postgres: every fact is a row, and the constraints hold the invariants."""
