"""Retrofill: backfills that cannot go wrong."""

from retrofill.deadline import Deadline, KafkaTopic, Reference, Webhook
from retrofill.pipeline import Pipeline

__all__ = ["Deadline", "KafkaTopic", "Pipeline", "Reference", "Webhook"]
