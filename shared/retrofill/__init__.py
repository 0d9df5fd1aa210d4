"""Retrofill: backfills that cannot go wrong."""

from retrofill.alerts import Callback, Deadline, KafkaTopic, Reference, Webhook
from retrofill.pipeline import Pipeline
from retrofill.sdk.texts import Table

__all__ = ["Callback", "Deadline", "KafkaTopic", "Pipeline", "Reference", "Table", "Webhook"]
