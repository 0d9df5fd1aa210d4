"""Shared by the benchmarks."""
