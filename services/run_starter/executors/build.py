"""Builds a run-starter's executors: one for each pool that it serves, and one of all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from retrofill.errors import NotConfigured
from retrofill.spark import java
from retrofill.spark.home import SparkHome
from retrofill.states import AttemptMode
from retrofill.system import files
from retrofill_core.domain.allowed import refusal
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.pools import served, unknown_secret
from retrofill_core.setting_types import check_cluster
from retrofill_core.settings import Settings
from run_starter.executors import Condition, Executor, Host, Key, LaunchRequest, submission
from run_starter.executors.clearing import Clearing
from run_starter.executors.command import Drivers, Interpreters, drivers_of
from run_starter.executors.local_pool import LocalPool
from run_starter.executors.logs import AttemptLogs
from run_starter.executors.preparing import Preparing
from run_starter.executors.spark_submit import SparkSubmit


class WarmPool(Executor, Protocol):
    """Hosts the warm drivers of a pool."""

    def has_idle(self) -> bool:
        """Whether a warm process is free now."""


class Dispatch:
    """The warm drivers and spark-submit of one pool, which share its seats."""

    def __init__(
        self, drivers: Drivers, host: Host, interpreters: Interpreters, pool: WarmPool, submit: Executor
    ) -> None:
        self._drivers = drivers
        self._host = host
        self._pool = pool
        self._executors: dict[str, Executor] = {"pool": pool, "spark-submit": submit}
        self._preparing = Preparing(drivers.settings, interpreters, host, self._hand_over)
        self.clearing: Executor = Clearing(drivers, host, self._give)

    def condition(self) -> Condition:
        preparing = self._preparing.condition()
        pool, submit = (self._executors[name].condition() for name in ("pool", "spark-submit"))
        return replace(
            submit,
            # Without room for more than it has, the host is given nothing.
            room=pool.room + submit.room if preparing.submits else len(self.hosted()),
            submits=submit.submits and preparing.submits,
            note=self.clearing.condition().note or preparing.note or pool.note or submit.note,
            python=pool.python or submit.python,
            spark=pool.spark or submit.spark,
        )

    @property
    def _all(self) -> Sequence[Executor]:
        # In the order in which a launch passes through them, so that none is overlooked on its way.
        return [self._preparing, self.clearing, *self._executors.values()]

    def waiting(self) -> list[LaunchRequest]:
        return [launch for executor in self._all for launch in executor.waiting()]

    def launch(self, launch: LaunchRequest) -> None:
        """Hand the attempt to the executor of its pipeline, unless the settings forbid it.

        That waits until what earlier attempts started in a cluster has ended.
        """
        settings = self._drivers.settings
        # What was accepted is published, also under other settings.
        if launch.mode != AttemptMode.PUBLISH:
            # The planner accepted the definition, but perhaps under other settings.
            reason = refusal(launch.pipeline, settings.spark_conf_allow, settings.script_allow)
            reason = (
                reason or submission.refusal(settings, launch) or unknown_secret(launch.pipeline, self._drivers.secrets)
            )
            if reason is not None:
                self._host.refused(launch, reason)
                return
        launch = self._with_conf(launch)
        if launch.only_files and launch.pipeline.executor == "spark-submit":
            launch = replace(launch, sees_files=submission.sees_files(settings, launch))
        self._preparing.launch(launch)

    def _hand_over(self, launch: LaunchRequest) -> None:
        if submission.to_clear(launch) and _has_applications(launch.pipeline):
            self.clearing.launch(launch)
        else:
            self._give(launch)

    def _give(self, launch: LaunchRequest) -> None:
        name = launch.pipeline.executor
        if launch.mode == AttemptMode.PUBLISH and launch.needs_no_spark:
            # Any process does. One that is there already begins at once.
            name = "pool" if self._pool.has_idle() else "spark-submit"
        self._executors[name].launch(launch)

    def _with_conf(self, launch: LaunchRequest) -> LaunchRequest:
        """The launch with the pool's settings of sessions, below the pipeline's own."""
        conf = {**self._drivers.session_conf, **launch.pipeline.spark_conf}
        return replace(launch, pipeline=launch.pipeline.model_copy(update={"spark_conf": conf}))

    def hosted(self) -> set[Key]:
        return set().union(*(executor.hosted() for executor in self._all))

    def end(self, key: Key) -> None:
        for executor in self._all:
            executor.end(key)

    def close(self) -> None:
        for executor in self._all:
            executor.close()


class Pools:
    """The executors of all pools that are served, by name."""

    def __init__(self, executors: Mapping[str, Executor], logs: AttemptLogs | None = None) -> None:
        self.executors = executors
        self._logs = logs

    def launch(self, launch: LaunchRequest) -> None:
        """Hand the attempt to its pool."""
        self.executors[launch.pipeline.pool].launch(launch)

    def hosted(self) -> set[Key]:
        return set().union(*(executor.hosted() for executor in self.executors.values()))

    def end(self, key: Key) -> None:
        for executor in self.executors.values():
            executor.end(key)

    def close(self) -> None:
        for executor in self.executors.values():
            executor.close()
        if self._logs is not None:
            self._logs.close()


def dispatch_of(drivers: Drivers, host: Host, logs: AttemptLogs) -> Dispatch:
    """The executors of one pool, whose drivers print to ``logs``."""
    interpreters = Interpreters(drivers)
    pool = LocalPool(drivers, host, logs, interpreters)
    return Dispatch(drivers, host, interpreters, pool, SparkSubmit(drivers, host, logs, interpreters))


def build_executors(settings: Settings, host: Host) -> Pools:
    """The executors of the pools that are served.

    Raises ``NotConfigured`` if something that a pool names is missing, or its Spark cannot be used.
    """
    files.sweep()
    drivers = {name: drivers_of(settings, name) for name in served(settings)}
    for each in drivers.values():
        check_spark(each.settings, each.python)
    # One process writes the logs of all pools.
    redact = dict.fromkeys(pattern for each in drivers.values() for pattern in each.settings.redact)
    logs = AttemptLogs(settings, tuple(redact))
    return Pools({name: dispatch_of(each, host, logs) for name, each in drivers.items()}, logs)


def _has_applications(pipeline: PipelineDefinition) -> bool:
    """Whether its attempts may start applications by spark-submit."""
    by_itself = pipeline.executor == "spark-submit" and pipeline.needs_session
    return by_itself or any(task.kind == "submit" for task in pipeline.tasks)


def check_spark(settings: Settings, python: str = sys.executable) -> None:
    """Raises ``NotConfigured`` if the Spark that drivers with this Python use cannot be used.

    Without any Spark, a host can still publish.
    """
    folder = os.environ.get("SPARK_CONF_DIR")
    if folder and not Path(folder).is_dir():
        raise NotConfigured("SPARK_CONF_DIR", f"SPARK_CONF_DIR: there is no directory {folder}: correct or unset it")
    if settings.spark_home is None and not os.environ.get("SPARK_HOME") and java.pyspark(python) is None:
        return
    home = SparkHome.of(settings, python)
    program = home.folder / "bin" / "spark-submit"
    if home.variable is not None and not os.access(program, os.X_OK):
        raise NotConfigured(
            home.variable,
            f"{home.variable}: there is no program {program}: set it to the folder of a Spark installation, or unset it "
            "to use the one in pyspark",
        )
    master = home.master
    if settings.spark_submit_deploy_mode == "cluster":
        try:
            check_cluster(master, settings.driver_host)
        except ValueError as e:
            raise NotConfigured("RETROFILL_SPARK_SUBMIT_MASTER", str(e)) from e
