"""``config``: the settings as the commands and services in this folder see them, secrets masked."""

from __future__ import annotations

import json
from typing import Any

import typer

from retrofill.cli.options import AsJson
from retrofill.cli.output import print_json, print_text
from retrofill.client.connect import load_settings
from retrofill.masking import masked_conf, masked_remote
from retrofill.settings import Settings


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("config")(config)


def config(as_json: AsJson = False) -> None:
    """Show every setting; of secrets, only that there is one."""
    values = shown(load_settings())
    if as_json:
        return print_json(values)
    for name, value in values.items():
        text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
        print_text(f"{name}={text}")
    return None


def shown(settings: Settings) -> dict[str, Any]:
    """Value by variable, as JSON has it: secrets are asterisks, whatever is in them."""
    # The library masks them in JSON, also where they are inside of a list or a mapping.
    values = settings.model_dump(mode="json")
    # Spark's are plain texts to everybody else, and most of them are no secrets.
    values |= {name: masked_conf(values[name]) for name in ("spark_conf", "spark_submit_conf")}
    values["spark_remote"] = masked_remote(settings.spark_remote)
    return {f"RETROFILL_{name.upper()}": value for name, value in values.items()}
