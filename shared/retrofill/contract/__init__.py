"""Every message of every topic as a pydantic model; the JSON Schemas are made from here."""

from retrofill.contract import backfills, deadlines, pipelines, runs
from retrofill.contract.base import Message, Undecodable, decode

__all__ = ["Message", "Undecodable", "backfills", "deadlines", "decode", "pipelines", "runs"]
