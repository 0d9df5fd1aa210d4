"""``config``: the effective settings in this directory, with secrets masked."""

from __future__ import annotations

import json
from typing import Any

import typer

from retrofill.masking import masked_conf, masked_remote
from retrofill_core.settings import Settings
from retrofill_tools.cli.options import AsJson
from retrofill_tools.cli.output import print_json, print_text
from retrofill_tools.client.connect import load_settings


def register(app: typer.Typer) -> None:
    app.command("config")(config)


def config(as_json: AsJson = False) -> None:
    """Show all settings, with secrets masked."""
    values = shown(load_settings())
    if as_json:
        return print_json(values)
    for name, value in values.items():
        text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
        print_text(f"{name}={text}")
    return None


def shown(settings: Settings) -> dict[str, Any]:
    """JSON values by variable, with secrets masked."""
    # In JSON mode pydantic also masks secrets inside lists and mappings.
    values = settings.model_dump(mode="json")
    # Spark settings are plain strings, and most are not secret.
    values |= {name: masked_conf(values[name]) for name in ("spark_conf", "spark_submit_conf")}
    values["spark_remote"] = masked_remote(settings.spark_remote)
    values["pools"] = {name: pool.shown() for name, pool in settings.pools.items()}
    return {f"RETROFILL_{name.upper()}": value for name, value in values.items()}
