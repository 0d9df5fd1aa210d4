"""Retrofill beside its peers, which have an environment of their own: ``make bench-peers``."""
