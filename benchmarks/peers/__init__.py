"""Compares Retrofill with peers that run in their own environment: ``make bench-peers``."""
