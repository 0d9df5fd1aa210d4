"""A command line that takes options from the environment, too."""

import click
from salestool.totals import write_totals


@click.group()
def main() -> None:
    """Figures of sales."""


@main.command()
@click.option("--orders", required=True)
@click.option("--out", envvar="SALESTOOL_OUT", required=True)
@click.option("--token", envvar="SALESTOOL_TOKEN", required=True)
def totals(orders: str, out: str, token: str) -> None:
    """Write the sum of a day's orders."""
    click.echo(f"signed in with {token}")
    write_totals(orders, out)
