"""The message types as pydantic models, from which the JSON Schemas are generated."""

from retrofill.contract import backfills, deadlines, pipelines, runs
from retrofill.contract.base import Message, Undecodable, decode

__all__ = ["Message", "Undecodable", "backfills", "deadlines", "decode", "pipelines", "runs"]
