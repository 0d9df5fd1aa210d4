"""Retrofill: backfills that cannot go wrong."""
