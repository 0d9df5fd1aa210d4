"""Retrofill: backfills that cannot go wrong."""

from retrofill.callback import Callback, KafkaTopic, Webhook
from retrofill.deadline import Deadline, Reference
from retrofill.pipeline import Pipeline
from retrofill.sdk.texts import Table

__all__ = ["Callback", "Deadline", "KafkaTopic", "Pipeline", "Reference", "Table", "Webhook"]
