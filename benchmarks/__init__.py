"""Benchmarks, each with its peers."""
