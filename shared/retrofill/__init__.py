"""Retrofill: backfills that cannot go wrong."""

from retrofill.deadline import Deadline, Reference
from retrofill.pipeline import Pipeline

__all__ = ["Deadline", "Pipeline", "Reference"]
