"""The message types as pydantic models, from which the JSON Schemas are generated."""

from retrofill_core.contract import backfills, deadlines, pipelines, runs
from retrofill_core.contract.base import Message, Undecodable, decode

__all__ = ["Message", "Undecodable", "backfills", "deadlines", "decode", "pipelines", "runs"]
