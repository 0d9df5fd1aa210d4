"""Spark settings, scripts and what these load: settings that load no code, and shipped files.

A definition arrives as a message: the right to publish one must not imply the right to run code
(docs/decisions/what-definitions-may-load.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from retrofill.masking import hides
from retrofill.sdk.names import PACKAGES
from retrofill.sdk.texts import is_inside, outline
from retrofill_core.domain.callback import WebhookCall, shown
from retrofill_core.domain.pipeline import CodeLocation, PipelineDefinition
from retrofill_core.domain.secrets import is_secret_address

# Means the two lists below in RETROFILL_SPARK_CONF_ALLOW.
DEFAULT = "default"
# Prefix of environment variables there, of which the lists below have none.
ENVIRONMENT = "env."
# Resources, planning and writing. None of these, without the exceptions below, names new code, a program or an address.
_SETTINGS = (
    "spark.app.name",
    "spark.cores.max",
    "spark.default.parallelism",
    "spark.driver.cores",
    "spark.driver.maxResultSize",
    "spark.driver.memory",
    "spark.driver.memoryOverhead",
    "spark.driver.memoryOverheadFactor",
    "spark.dynamicAllocation.*",
    "spark.executor.cores",
    "spark.executor.heartbeatInterval",
    "spark.executor.instances",
    "spark.executor.memory",
    "spark.executor.memoryOverhead",
    "spark.executor.memoryOverheadFactor",
    "spark.executor.pyspark.memory",
    "spark.locality.wait*",
    "spark.memory.fraction",
    "spark.memory.offHeap.enabled",
    "spark.memory.offHeap.size",
    "spark.memory.storageFraction",
    "spark.network.timeout",
    "spark.rdd.compress",
    "spark.scheduler.maxRegisteredResourcesWaitingTime",
    "spark.scheduler.minRegisteredResourcesRatio",
    "spark.scheduler.mode",
    "spark.scheduler.pool",
    "spark.shuffle.compress",
    "spark.shuffle.file.buffer",
    "spark.shuffle.spill.compress",
    "spark.speculation*",
    "spark.sql.*",
    "spark.task.cpus",
    "spark.task.maxFailures",
)
# Exceptions that load classes, start programs, or expose files or secrets of the server.
_EXCEPT = (
    "spark.sql.*[cC]lass",
    "spark.sql.*Classes",
    "spark.sql.*Listeners",
    "spark.sql.*Providers",
    "spark.sql.artifact.*",
    "spark.sql.cache.serializer",
    "spark.sql.catalog.*",
    "spark.sql.catalogImplementation",
    "spark.sql.columnar.*",
    "spark.sql.execution.pyspark.python",
    "spark.sql.extensions*",
    "spark.sql.hive.*",
    "spark.sql.legacy.hive.*",
    "spark.sql.legacy.setCommandRejectsSparkCoreConfs",
    "spark.sql.maven.*",
    "spark.sql.redaction.*",
    "spark.sql.streaming.checkpointLocation",
    "spark.sql.streaming.stateStore.compression.codec",
    "spark.sql.warehouse.dir",
)
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")


def refusal(
    definition: PipelineDefinition, settings_allowed: Iterable[str], scripts_allowed: Iterable[str]
) -> str | None:
    """Why the definition may not run, in one line, or ``None`` if it may."""
    return next(_refusals(definition, tuple(settings_allowed), tuple(scripts_allowed)), None)


def _refusals(definition: PipelineDefinition, settings: Sequence[str], scripts: Sequence[str]) -> Iterator[str]:
    yield from _of_settings("spark_conf", definition.spark_conf, settings)
    for task in definition.tasks:
        if task.submit is None:
            continue
        yield from _of_settings(f"conf of task {task.name!r}", task.submit.conf, settings)
        yield from _of_environment(task.name, task.submit.env, settings)
        if task.submit.packages:
            yield from _of_settings(f"packages of task {task.name!r}", [PACKAGES], settings)
        for address in map(outline, task.submit.needed):
            if not (_is_shipped(address, definition.code) or _is_listed(address, scripts)):
                runs = f"run the {'script' if task.kind == 'submit' else 'program'}"
                what = runs if address == task.submit.script else "use the file"
                # A name is looked for on the host.
                how = (
                    "put it next to the pipeline's file and apply the pipeline with a code store, or"
                    if "/" in address
                    else "ship a script that runs it, or"
                )
                yield (
                    f"task {task.name!r} may not {what} {address!r}, which is not shipped with the pipeline's code: {how} add "
                    f"its {'address' if '/' in address else 'name'} to RETROFILL_SCRIPT_ALLOW of the planner and the run-starter"
                )


def secret_address(definition: PipelineDefinition) -> str | None:
    """The first webhook whose address is a secret that all readers of definitions would see, in one line, or ``None``."""
    for where, target, _ in definition.calls():
        if isinstance(target, WebhookCall) and target.url is not None and is_secret_address(target.url):
            return (
                f"{where}: the address {shown(target.kind, target.url)} looks like a secret, and all readers of definitions "
                "would see it: use Webhook(receiver='NAME'), and give the callback-runner the address in RETROFILL_RECEIVERS"
            )
    return None


def _of_environment(task: str, names: Iterable[str], allowed: Sequence[str]) -> Iterator[str]:
    # Python, Java, the shell and the loader each read variables that load code.
    for name in names:
        if not setting_allowed(f"{ENVIRONMENT}{name}", allowed):
            yield (
                f"task {task!r} may not set the environment variable {name!r}, which may load code or contain a secret: add "
                f"{ENVIRONMENT}{name} to RETROFILL_SPARK_CONF_ALLOW of the planner and the run-starter, or set it where "
                "they run"
            )


def _of_settings(where: str, names: Iterable[str], allowed: Sequence[str]) -> Iterator[str]:
    for name in names:
        if not setting_allowed(name, allowed):
            yield (
                f"{where}: a definition may not set {name[:200]!r}, which may load code, expose other data or contain a "
                "secret: set it where Spark runs (RETROFILL_SPARK_SUBMIT_CONF, or the Spark Connect server), or add it to "
                "RETROFILL_SPARK_CONF_ALLOW of the planner and the run-starter"
            )


def setting_allowed(name: str, allowed: Iterable[str]) -> bool:
    """Whether a definition may contain this Spark setting."""
    return _PLAIN.fullmatch(name) is not None and any(
        _by_default(name) if pattern == DEFAULT else fnmatchcase(name, pattern) for pattern in allowed
    )


def _by_default(name: str) -> bool:
    # Many clients can read a definition: secrets belong where Spark runs.
    return _any(name, _SETTINGS) and not _any(name, _EXCEPT) and not hides(name)


def _any(text: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _is_shipped(script: str, code: CodeLocation) -> bool:
    return code.sha256 is not None and code.root is not None and (script == code.root or is_inside(script, code.root))


def _is_listed(script: str, allowed: Iterable[str]) -> bool:
    # Spark decodes addresses, so %2e%2e escapes too, and takes a leading dash for an option.
    escapes = ".." in script.split("/") or "%" in script
    return not escapes and not script.startswith("-") and _any(script, allowed)
