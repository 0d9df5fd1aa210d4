"""``retrofill test``: a day of a pipeline on a local Spark, without servers; what it stages is shown and not published."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from retrofill.driver.config import Config
from retrofill.errors import NotConfigured, UserError, stored_line
from retrofill.protocol.launch import LaunchedRun
from retrofill.spark.home import SparkHome
from retrofill.spark.java import NoJava, bundled, find, with_jars
from retrofill.states import PROCESS_ENDED, AttemptMode
from retrofill.system.files import PrivateFolder
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.planning import Intervals, find_intervals
from retrofill_core.driver_package import SOURCE, entry
from retrofill_core.settings import Settings
from retrofill_tools.cli.arguments import read_bound, read_conf
from retrofill_tools.cli.options import AsJson
from retrofill_tools.cli.output import harmless, moment, print_json, print_table, print_text, warn
from retrofill_tools.cli.pipelines import chosen, missing_files, read_source
from retrofill_tools.client.connect import checked_settings
from retrofill_tools.stack.maven import FetchFailed, Maven
from retrofill_tools.stack.spark import of_scripts

# No installation, and no run of one, has such names.
BACKFILL, MAX_RUNS = "test", 100
# Nobody renews the lease of a script, which nobody can take over either.
LEASE_SECONDS = 7 * 86_400.0
Document = Mapping[str, Any]


def test(
    source: Annotated[str, typer.Argument(metavar="FILE_OR_MODULE", help="Python file or module with the pipeline.")],
    date: Annotated[str, typer.Option("--date", metavar="DATE", help="Logical date; a day means all its intervals.")],
    name: Annotated[str | None, typer.Option("--name", help="The pipeline, if there are several.")] = None,
    conf: Annotated[
        str | None, typer.Option(metavar="JSON", help="JSON object that is passed to the tasks, or @FILE.")
    ] = None,
    rows: Annotated[int, typer.Option(min=0, max=1000, help="Number of rows to show of each output.")] = 5,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the staged output instead of deleting it at the end.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a day of a pipeline on a local Spark, without servers, and show what it stages. Publishes nothing.

    Tasks that stage nothing write as they always do.
    """
    settings, given = _local(checked_settings()), read_conf(conf)
    read = read_source(source, settings, None)
    definitions = chosen(read.definitions, name, source)
    if len(definitions) > 1:
        raise UserError(f"{source} has {', '.join(each.name for each in definitions)}: choose one with --name")
    (definition,) = definitions
    own = [each for each in (read.root, Path.cwd()) if each is not None]
    warn([*missing_files(definition, own), *_unstaged(definition)])
    found = find_intervals(definition, [(bound := read_bound("--date", date), bound)], MAX_RUNS)
    if not isinstance(found, Intervals):
        raise UserError(found.message)
    document = _execute(settings, definition, found, {"conf": given, "rows": rows, "keep": keep})
    if as_json:
        print_json(document)
    else:
        _print(document, definition.timezone, keep=keep)
    _check(document, definition)


def _local(settings: Settings) -> Settings:
    """The settings of a Spark on this machine, with the table formats and catalogs of an embedded stack's."""
    cores = settings.spark_cores or os.cpu_count() or 2
    given = {"spark_remote": None, "spark_submit_deploy_mode": "client"}
    local = settings.model_copy(
        update={**given, "spark_submit_master": settings.spark_submit_master or f"local[{cores}]"}
    )
    if not (local.spark_submit_master or "").startswith("local"):
        raise UserError(
            f"RETROFILL_SPARK_SUBMIT_MASTER is {local.spark_submit_master}, but a test runs on this machine: "
            "set it to local[2], for example"
        )
    try:
        maven = Maven(local, find(local), lambda line: warn([line]), {})
        of_tables = of_scripts(local, maven)
    except (NoJava, FetchFailed, ModuleNotFoundError, NotConfigured) as e:
        raise UserError(str(e)) from e
    return local.model_copy(update={"spark_submit_conf": {**of_tables, **local.spark_submit_conf}})


def _unstaged(definition: PipelineDefinition) -> list[str]:
    return [
        f"task {task.name!r} stages nothing: its writes take effect at once (if it writes nothing, declare it with "
        "writes_nothing=True)"
        for task in definition.tasks
        if task.bypasses_reviews
    ]


def _execute(settings: Settings, definition: PipelineDefinition, found: Intervals, asked: Document) -> Document:
    """What became of the intervals. The driver's output goes to standard error, as its log would have it."""
    with PrivateFolder() as folder:
        request, result = folder / "request.json", folder / "result.json"
        request.write_text(json.dumps({**asked, **_request(settings, definition, found, asked)}), "utf-8")
        home = SparkHome.of(settings)
        conf = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "WARN",
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            **home.defaults,
            "spark.app.name": f"retrofill test {definition.name}",
            **home.python_of_driver(definition.spark_conf),
            **settings.spark_submit_conf,
            **definition.spark_conf,
        }
        words = [entry(SOURCE.parent, "trial"), str(request), str(result)]
        command = [*home.command(with_jars(conf, settings.spark_jars), folder, "client"), *words]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RETROFILL_")}
        environment = {**inherited, **home.environment(folder, inherited)}
        status = subprocess.run(
            command, env=environment, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False
        ).returncode
        if not result.exists():
            raise UserError(
                f"Spark ended with status {status} before the first task: {shlex.join(command[:1])} says why above"
            )
        document: dict[str, Any] = {"pipeline": definition.name, **json.loads(result.read_text("utf-8"))}
    for run in document["runs"]:
        if run["state"] == "running":
            why = f"the code of its tasks ended the process with exit status {status}: return or raise instead"
            run.update(state="failed", error={"type": PROCESS_ENDED, "message": why})
    return document


def _request(settings: Settings, definition: PipelineDefinition, found: Intervals, asked: Document) -> Document:
    zone = ZoneInfo(definition.timezone)
    told = settings.model_dump(mode="json", include={each.name for each in fields(Config)})
    runs = [
        LaunchedRun(number, 1, start, end).as_json(zone)
        for number, (start, end) in enumerate(zip(found.starts, found.ends, strict=True), 1)
    ]
    launch = {
        "backfill_id": BACKFILL,
        "attempt_id": 1,
        "mode": AttemptMode.EACH,
        "runs": runs,
        "pipeline": definition.as_json(),
        "conf": asked["conf"],
        "lease_seconds": LEASE_SECONDS,
        # What several tests stage at a time has names of its own.
        "installation": uuid.uuid4().hex,
    }
    java = bundled()
    return {"settings": {**told, "bundled_java": None if java is None else str(java)}, "launch": launch}


def _print(document: Document, zone: str, *, keep: bool) -> None:
    for run in document["runs"]:
        start, end = (moment(datetime.fromisoformat(run[f"interval_{side}"]), zone) for side in ("start", "end"))
        print_text(f"{start} – {end} ({zone}): {run['state']}")
        for name, task in run["tasks"].items():
            tries = "" if task["try_number"] == 1 else f" (try {task['try_number']})"
            print_text(f"  {name}: {task['state']}{tries}")
        if run["error"] is not None:
            error = run["error"]
            print_text(f"\n{error['type']}: {error['message']}\n{error.get('traceback') or '(no traceback)'}".rstrip())
        for output in run["outputs"]:
            _print_output(output, keep=keep)


def _print_output(output: Document, *, keep: bool) -> None:
    figures = f"{output['rows']:,} rows" if output["rows"] is not None else "files that Spark does not read"
    size = "" if output["bytes"] is None else f", {output['bytes']:,} bytes"
    print_text(f"\nstaged for {output['output']}: {figures}{size}")
    if keep:
        print_text(f"  kept in {output['staged']}")
    if output["schema"]:
        print_text(f"  {', '.join(f'{name} {kind}' for name, kind in output['schema'])}")
    if output["first"]:
        width = shutil.get_terminal_size().columns
        columns = [name for name, _ in output["schema"]]
        cells = [[None if value is None else harmless(value)[:width] for value in row] for row in output["first"]]
        print_table(columns, cells, empty="")


def _check(document: Document, definition: PipelineDefinition) -> None:
    """Raises ``UserError`` unless all runs have succeeded."""
    runs: Sequence[Document] = document["runs"]
    failed = next((run for run in runs if run["state"] != "succeeded"), None)
    if failed is not None:
        why = f": {stored_line(failed['error'])}" if failed["error"] else ""
        raise UserError(f"{definition.name}: the run of {failed['interval_start']} {failed['state']}{why}")
