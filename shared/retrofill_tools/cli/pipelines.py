"""``retrofill pipelines``: apply, list, show and delete pipelines."""

from __future__ import annotations

import importlib
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from retrofill.errors import UserError, WrongUsage
from retrofill.masking import masked_conf
from retrofill.sdk.names import written
from retrofill.sdk.scripts import meant
from retrofill_core.contract.base import explain
from retrofill_core.contract.pipelines import PipelineAccepted, PipelineApplied, PipelineRejected
from retrofill_core.contract.topics import Topic, is_own
from retrofill_core.domain.allowed import secret_address
from retrofill_core.domain.callback import FunctionCall, Target, TopicMessage, WebhookCall, shown
from retrofill_core.domain.data import PackedEnvironment
from retrofill_core.domain.estimate import target_seconds
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.driver_package import inspecting
from retrofill_core.pools import unknown_secret
from retrofill_core.settings import Settings
from retrofill_core.user_code.archive import CannotArchive, archive_of
from retrofill_core.user_code.source import Source
from retrofill_core.user_code.store import CodeStoreFails, open_store
from retrofill_tools.cli.asking import Yes, confirm
from retrofill_tools.cli.hosts import warn_of_unserved
from retrofill_tools.cli.options import ANSWER_SECONDS, AsJson, Form, TimeLimit, pipeline_names, takes_form
from retrofill_tools.cli.output import (
    Column,
    cell,
    duration,
    print_facts,
    print_json,
    print_list,
    print_one,
    print_table,
    print_text,
    warn,
)
from retrofill_tools.client.connect import load_settings, reading
from retrofill_tools.client.kafka import ask, remove_pipeline
from retrofill_tools.client.pipelines import (
    PipelineSummary,
    active_of,
    applied_pipelines,
    find_pipeline,
    last_applied_at,
    pipeline_as_json,
)

group = typer.Typer(name="pipelines", help="Apply, list, show and delete pipelines.", no_args_is_help=True)


@dataclass(frozen=True)
class Accepted:
    """A pipeline that was applied. ``schedule_before`` and ``timezone_before``: if they have changed."""

    name: str
    accepted: bool
    changed: bool
    schedule_before: str | None
    timezone_before: str | None
    code_sha256: str | None
    environment_sha256: str | None


@dataclass(frozen=True)
class Refused:
    """A pipeline that the planner refused."""

    name: str
    accepted: bool
    message: str
    code_sha256: str | None
    environment_sha256: str | None


@group.command()
def apply(
    source: Annotated[str, typer.Argument(metavar="FILE_OR_MODULE", help="Python file or module with pipelines.")],
    name: Annotated[str | None, typer.Option("--name", help="Only the pipeline with this name.")] = None,
    include: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help="Ship this file or directory with the code; repeatable.")
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Ship nothing: drivers import the code from its current path.")
    ] = False,
    requirements: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Requirements file of the packages that tasks import; pex packs them."),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Interpreter that has the packages that the file imports. Requirements are packed for it.",
        ),
    ] = None,
    timeout: TimeLimit = ANSWER_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Apply the pipelines of a Python file or module."""
    settings = load_settings()
    results: list[Accepted | Refused] = []
    environment = None if requirements is None else packed(requirements, settings, python)
    read = read_source(source, settings, python, environment)
    definitions = chosen(read.definitions, name, source)
    for definition in definitions:
        check_targets(definition, settings)
        check_secrets(definition, settings)
        warn(missing_files(definition, [each for each in (read.root, Path.cwd()) if each is not None]))
    if not in_place:
        definitions = ship(settings, replace(read, definitions=definitions), include or [])
    elif include:
        raise WrongUsage("--include ships code and --in-place does not: use only one of them")
    for definition in definitions:
        code = definition.code.model_copy(update={"environment": environment})
        message = PipelineApplied(pipeline=definition.model_copy(update={"code": code}))
        answer = ask(settings, Topic.PIPELINES, definition.name, message, timeout)
        results.append(
            _result(definition.name, answer, code.sha256, None if environment is None else environment.sha256)
        )
    if as_json:
        print_json({"pipelines": results})
    accepted = [each for each in results if isinstance(each, Accepted)]
    names = {each.name for each in accepted}
    warn_of_unserved(settings, [each.pool for each in definitions if each.name in names])
    for each in () if as_json else accepted:
        _print_accepted(each)
    if refused := [f"{each.name}: {each.message}" for each in results if isinstance(each, Refused)]:
        raise UserError("; ".join(refused))


def chosen(found: Sequence[PipelineDefinition], name: str | None, source: str) -> list[PipelineDefinition]:
    """All pipelines, or the one called ``name``. Raises ``UserError`` if there is none."""
    picked = [definition for definition in found if name in (None, definition.name)]
    if not picked:
        there = ", ".join(definition.name for definition in found) or "none"
        raise UserError(f"{source} has no pipeline {name!r}; it has: {there}" if name else f"{source} has no pipeline")
    return picked


def _result(name: str, answer: object, code: str | None, environment: str | None) -> Accepted | Refused:
    match answer:
        case PipelineAccepted(changed=changed, schedule_before=schedule, timezone_before=timezone):
            return Accepted(name, True, changed, schedule, timezone, code, environment)
        case PipelineRejected(message=message):
            return Refused(name, False, message, code, environment)
    raise UserError(f"{name}: unexpected reply: {getattr(answer, 'type', answer)}")


def _print_accepted(of: Accepted) -> None:
    hashes = {"code": of.code_sha256, "environment": of.environment_sha256}
    named = ", ".join(f"{kind} {sha256[:12]}" for kind, sha256 in hashes.items() if sha256)
    print_text(f"{of.name}: {'applied' if of.changed else 'nothing changed'}{f' ({named})' if named else ''}")
    if of.schedule_before is not None:
        # What it means for what is done.
        print_text(
            f"  its schedule was {of.schedule_before} ({of.timezone_before}): what that schedule processed counts where "
            "succeeded runs cover a whole interval; "
            f"'retrofill backfill dry-run {of.name} --from DATE --to DATE' shows it"
        )


@group.command("list")
@takes_form
def list_(*, form: Form) -> None:
    """List the applied pipelines."""
    with reading(load_settings()) as conn:
        found = applied_pipelines(conn)
    columns = [
        Column("name", lambda each: each.name),
        Column("schedule", lambda each: each.schedule),
        Column("time zone", lambda each: each.timezone),
        Column("batch", _batch),
        Column("tasks", lambda each: len(each.tasks)),
        Column("active", lambda each: each.active_backfills),
        Column("applied (UTC)", lambda each: each.applied_at),
        Column("concurrency", lambda each: each.max_active_runs, wide=True),
        Column("pool", lambda each: each.pool, wide=True),
        Column("start", lambda each: each.start, wide=True),
        Column("end", lambda each: each.end, wide=True),
    ]
    empty = "no pipelines yet: retrofill pipelines apply FILE"
    print_list(form, found, columns, name=lambda each: each.name, empty=empty)


def _batch(of: PipelineSummary) -> str:
    return str(of.batch_size) if of.batch_mode == "each" else f"{of.batch_size}, {of.batch_mode}"


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of an applied pipeline.", autocompletion=pipeline_names)
]


@group.command()
@takes_form
def show(name: Name, *, form: Form) -> None:
    """Show one pipeline: its schedule, tasks, deadlines and code."""
    with reading(load_settings()) as conn:
        definition = find_pipeline(conn, name).definition
        applied_at = last_applied_at(conn, name)
    document = pipeline_as_json(definition, applied_at)
    print_one(form, document, name, lambda: _print_pipeline(definition, applied_at))


@group.command()
def delete(name: Name, yes: Yes = False, timeout: TimeLimit = ANSWER_SECONDS, as_json: AsJson = False) -> None:
    """Delete a pipeline: no new backfill of it can be created.

    Its active backfills continue, and its history stays. If it is applied again, intervals that are done count as done.
    """
    settings = load_settings()
    with reading(settings) as conn:
        active = active_of(conn, find_pipeline(conn, name).no)
    goes_on = f" (active backfills, which continue: {active:,})" if active else ""
    confirm(f"delete pipeline {name}{goes_on}", yes=yes)
    answer = remove_pipeline(settings, name, timeout)
    if as_json:
        print_json({**answer.model_dump(mode="json", exclude_none=True), "active_backfills": active})
    else:
        print_text(f"{name}: deleted{goes_on}")


def _size(definition: PipelineDefinition) -> int | str:
    if definition.batch_target_seconds is None:
        return definition.batch_size
    return f"auto: attempts of about {duration(target_seconds(definition))}"


def _print_pipeline(definition: PipelineDefinition, applied_at: Any) -> None:
    code = definition.code
    print_facts(
        {
            "name": definition.name,
            "schedule": f"{definition.schedule} ({definition.timezone})",
            "start": definition.start,
            "end": definition.end,
            "concurrency": definition.max_active_runs,
            "batch size": _size(definition),
            "batch mode": definition.batch_mode,
            "run timeout": None if definition.run_timeout_seconds is None else written(definition.run_timeout_seconds),
            "executor": definition.executor,
            "pool": definition.pool,
            "code": f"{code.file or code.module}:{code.attribute}",
            "archive": code.sha256 and code.sha256[:12],
            "environment": code.environment and f"{code.environment.sha256[:12]} (Python {code.environment.python})",
            "applied": applied_at,
            "spark conf": ", ".join(f"{key}={value}" for key, value in masked_conf(definition.spark_conf).items())
            or None,
        }
    )
    _print_tasks(definition)
    _print_callbacks(definition)


def _print_tasks(definition: PipelineDefinition) -> None:
    print_text("")
    print_table(
        ["task", "kind", "after", "trigger rule", "retries", "timeout"],
        [
            [
                t.name,
                t.kind,
                ", ".join(t.after) or None,
                t.trigger_rule,
                t.retries,
                t.timeout_seconds and written(t.timeout_seconds),
            ]
            for t in definition.tasks
        ],
        empty="no tasks",
    )


def _print_callbacks(definition: PipelineDefinition) -> None:
    """The deadlines and what else callbacks are called on."""
    if definition.deadlines:
        print_text("")
        print_table(
            ["deadline", "counts from", "seconds", "callback"],
            [
                [
                    d.name,
                    d.reference,
                    cell(f"{d.interval_seconds:g}"),
                    None if d.callback is None else _seen(d.callback),
                ]
                for d in definition.deadlines
            ],
            empty="",
        )
    called = [(occasion, rule) for occasion, rules in definition.rules.items() for rule in rules]
    if called:
        print_text("")
        print_table(
            ["called on", "kind", "callback"],
            [[f"on_{occasion}", rule.callback.kind, _seen(rule.callback)] for occasion, rule in called],
            empty="",
        )


def _seen(target: Target) -> str:
    return shown(target.kind, target.key)


def ship(settings: Settings, source: Source, include: Sequence[Path]) -> list[PipelineDefinition]:
    """Store the code of the pipelines of one file or module. Returns the definitions with its hash.

    They are unchanged if no code store is set or the code is an installed package. Raises
    ``UserError``.
    """
    store = open_store(settings)
    if store is None:
        if include:
            raise UserError(
                "--include needs a code store: set RETROFILL_CODE_STORE to a directory or address that the drivers share"
            )
        return list(source.definitions)
    try:
        archive = archive_of(source, include, settings.code_max_bytes)
        if archive is None:
            return list(source.definitions)
        store.put(archive)
    except (CannotArchive, CodeStoreFails) as e:
        raise UserError(str(e)) from e
    shipped = {"sha256": archive.sha256, "root": str(source.root)}
    return [each.model_copy(update={"code": each.code.model_copy(update=shipped)}) for each in source.definitions]


def packed(requirements: Path, settings: Settings, python: str | None) -> PackedEnvironment:
    """The environment of a requirements file, which the code store has. Raises ``UserError``."""
    # Imported here: few need it.
    from retrofill_core.user_code.packing import pack

    return pack(settings, requirements, python, lambda line: typer.echo(f"retrofill: {line}", err=True))


def read_source(
    source: str, settings: Settings, python: str | None, environment: PackedEnvironment | None = None
) -> Source:
    """The pipelines of a file or module, as data.

    They are read by the interpreter ``python``, in the environment if there is one. Raises
    ``UserError``.
    """
    # Only this command imports user code.
    from retrofill.user_code.loading import PipelineFileError
    from retrofill_core.user_code.source import read_here, read_with

    try:
        if environment is not None:
            python = unpacked(environment, settings, python)
        return read_here(source) if python is None else read_with(python, inspecting(settings.home), source)
    except PipelineFileError as e:
        raise UserError(str(e)) from e
    except ValidationError as e:
        raise UserError(f"{source}: {explain(e)}") from e
    except OSError as e:
        raise UserError(f"{settings.home} cannot be written: {e.strerror}: set RETROFILL_HOME") from e


def unpacked(environment: PackedEnvironment, settings: Settings, python: str | None) -> str:
    """The interpreter of an environment on this machine, which unpacks it once. Raises ``UserError``."""
    from retrofill_core.user_code.environments import Environments, Packed
    from retrofill_core.user_code.store import CodeUnavailable

    try:
        found = Environments(settings, python or sys.executable).unpack(Packed(environment.sha256, environment.python))
    except CodeUnavailable as e:
        raise UserError(str(e)) from e
    return found.python


def check_targets(definition: PipelineDefinition, settings: Settings) -> None:
    """Raises ``UserError`` for the first callback that cannot be called, or has a secret address."""
    if (why := secret_address(definition)) is not None:
        raise UserError(f"{definition.name}: {why}")
    for where, target, kwargs in definition.calls():
        try:
            check_target(target, settings, kwargs)
        except ValueError as e:
            raise UserError(f"{definition.name}: {where}: {e}") from e


def check_secrets(definition: PipelineDefinition, settings: Settings) -> None:
    """Raises ``UserError`` for a secret that its pool does not have, where the pool is configured here, too."""
    pool = settings.pools.get(definition.pool)
    if pool is not None and (unknown := unknown_secret(definition, pool.sources)) is not None:
        raise UserError(f"{definition.name}: {unknown}")


def missing_files(definition: PipelineDefinition, own: Sequence[Path]) -> list[str]:
    """A line for each file or program of a task that is not on this machine, but may be on the hosts.

    Raises ``UserError`` for one inside the directories ``own``: it was named relative to these, or was to be shipped.
    """
    lines = []
    for task in definition.tasks:
        script = task.submit
        for address in () if script is None else script.needed:
            where = f"{definition.name}: task {task.name!r}:"
            if "/" not in address:
                if shutil.which(address) is None:
                    lines.append(
                        f"{where} there is no program {address} on this machine: each host of pool {definition.pool} needs it"
                    )
                continue
            if "://" in address or meant(address):
                runs = task.kind == "command" and script is not None and address == script.script
                if runs and not os.access(address, os.X_OK):
                    raise UserError(
                        f"{where} {address} is not executable: begin it with a line like #!/bin/sh, and chmod +x it"
                    )
                continue
            if any(Path(address).is_relative_to(each) for each in own):
                raise UserError(f"{where} {address} does not exist: correct the path, or put the file there")
            lines.append(
                f"{where} {address} does not exist on this machine: each host of pool {definition.pool} needs it there"
            )
    return lines


def check_target(target: Target, settings: Settings, kwargs: Mapping[str, Any] | None = None) -> None:
    """Raises ``ValueError`` if ``target`` is not allowed or does not accept the kwargs."""
    match target:
        case FunctionCall(name=name):
            if name not in settings.callbacks:
                raise ValueError(
                    f"there is no callback {name!r}; RETROFILL_CALLBACKS has: {_names(settings.callbacks)}"
                )
            _check_call(name, settings.callbacks[name], kwargs or {})
        case WebhookCall(receiver=receiver, secret=secret, routing_key=key):
            if receiver is not None and receiver not in settings.receivers:
                raise ValueError(
                    f"there is no receiver {receiver!r}; RETROFILL_RECEIVERS has: {_names(settings.receivers)}"
                )
            if secret not in settings.webhook_secrets:
                known = _names(settings.webhook_secrets)
                raise ValueError(f"there is no webhook secret {secret!r}; RETROFILL_WEBHOOK_SECRETS has: {known}")
            if key is not None and key not in settings.pagerduty_keys:
                known = _names(settings.pagerduty_keys)
                raise ValueError(f"there is no routing key {key!r}; RETROFILL_PAGERDUTY_KEYS has: {known}")
        case TopicMessage(topic=topic):
            if is_own(topic, settings.topic_prefix):
                raise ValueError(f"the topic {topic!r} belongs to Retrofill: use a topic of your own")


def _check_call(name: str, place: str, kwargs: Mapping[str, Any]) -> None:
    function = _function(place)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some C functions have no signature
        return
    try:
        given = dict(kwargs)
        parameter = signature.parameters.get("context")
        if parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            given.setdefault("context", {})
        signature.bind(**given)
    except TypeError as e:
        raise ValueError(
            f"the callback {name!r} ({place}) does not accept these kwargs: {e}; it takes {_takes(signature)}"
        ) from e


def _function(place: str) -> Callable[..., Any]:
    # As in the process that calls it, modules in the working directory can be imported.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    module, _, path = place.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as e:
        raise ValueError(f"the callback {place} cannot be imported: {type(e).__name__}: {e}") from e
    if not callable(found):
        raise ValueError(f"{place} is not a function but of type {type(found).__name__}")
    function: Callable[..., Any] = found
    return function


def _takes(signature: inspect.Signature) -> str:
    return ", ".join(str(p) for name, p in signature.parameters.items() if name != "context") or "nothing"


def _names(known: dict[str, Any]) -> str:
    return ", ".join(sorted(known)) or "none"
