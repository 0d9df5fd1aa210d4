"""Options shared by several commands."""

from __future__ import annotations

from typing import Annotated

import typer

from retrofill_tools.cli.completion import pipeline_names

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="Show at most this many.")]
PipelineFilter = Annotated[
    str | None, typer.Option("--pipeline", help="Only this pipeline.", autocompletion=pipeline_names)
]
TimeLimit = Annotated[
    float,
    typer.Option(
        "--timeout",
        envvar="RETROFILL_ANSWER_SECONDS",
        min=0.1,
        metavar="SECONDS",
        help="How long to wait for the reply.",
    ),
]
ANSWER_SECONDS = 30.0
