"""Builds a run-starter's executor, which dispatches runs by pipeline within one limit."""

from __future__ import annotations

from retrofill.domain.allowed import refusal
from retrofill.domain.attempt import AttemptMode
from retrofill.settings import Settings
from run_starter.executors import Condition, Executor, Host, Key, LaunchRequest
from run_starter.executors.local_pool import LocalPool
from run_starter.executors.login import login
from run_starter.executors.logs import AttemptLogs
from run_starter.executors.spark_submit import SparkSubmit


class Dispatch:
    """The pool of warm drivers and spark-submit, which share the seats."""

    def __init__(self, settings: Settings, host: Host) -> None:
        self._settings = settings
        self._host = host
        self._logs = AttemptLogs(settings)
        self._executors: dict[str, Executor] = {
            "pool": LocalPool(settings, host, logs=self._logs),
            "spark-submit": SparkSubmit(settings, host, self._logs),
        }

    def condition(self) -> Condition:
        pool, submit = (self._executors[name].condition() for name in ("pool", "spark-submit"))
        return Condition(pool.room + submit.room, submit.submits, pool.note or submit.note)

    def waiting(self) -> list[LaunchRequest]:
        return [launch for executor in self._executors.values() for launch in executor.waiting()]

    def launch(self, launch: LaunchRequest) -> None:
        """Hand the attempt to the executor of its pipeline, unless the settings forbid it."""
        settings = self._settings
        # Publishing runs no user code, and the attempt was accepted.
        publishes = launch.mode == AttemptMode.PUBLISH
        if not publishes:
            # The planner accepted the definition, but perhaps under other settings.
            reason = refusal(launch.pipeline, settings.spark_conf_allow, settings.script_allow)
            if reason is not None:
                self._host.refused(launch, reason)
                return
        # Publishing needs no Spark, so it need not wait for spark-submit.
        self._executors["pool" if publishes else launch.pipeline.executor].launch(launch)

    def hosted(self) -> set[Key]:
        return set().union(*(executor.hosted() for executor in self._executors.values()))

    def end(self, key: Key) -> None:
        for executor in self._executors.values():
            executor.end(key)

    def close(self) -> None:
        for executor in self._executors.values():
            executor.close()
        self._logs.close()


def build_executor(settings: Settings, host: Host) -> Executor:
    """Raises ``NotConfigured`` if drivers would log in to Kafka as the run-starter."""
    login(settings)
    return Dispatch(settings, host)
