"""The executors of one run-starter behind one face: a run goes where its pipeline says, all within one limit."""

from __future__ import annotations

from retrofill.domain.allowed import refusal
from retrofill.settings import Settings
from run_starter.executors import Executor, Host, Key, Launch
from run_starter.executors.local_pool import LocalPool
from run_starter.executors.login import login
from run_starter.executors.spark_submit import SparkSubmit


class Dispatch:
    """The pool of warm drivers and spark-submit, within ``driver_slots`` together."""

    def __init__(self, settings: Settings, host: Host) -> None:
        self._settings = settings
        self._host = host
        self._limit = settings.driver_slots
        self._executors: dict[str, Executor] = {
            "pool": LocalPool(settings, host),
            "spark-submit": SparkSubmit(settings, host),
        }

    def free(self) -> int:
        """Drivers that may still be started."""
        return self._limit - len(self.hosted())

    def launch(self, launch: Launch) -> None:
        """Hand the attempt to the executor that its pipeline names, unless it may not run at all."""
        settings = self._settings
        # What is only published was accepted before, and runs neither code nor Spark.
        if not launch.publication:
            # Its definition was accepted by the planner, but that may have been under other settings.
            reason = refusal(launch.pipeline, settings.spark_conf_allow, settings.script_allow)
            if reason is not None:
                self._host.refused(launch, reason)
                return
        # Publishing needs no Spark, and a warm process has none to wait for.
        self._executors["pool" if launch.publication else launch.pipeline.executor].launch(launch)

    def hosted(self) -> set[Key]:
        """Whose drivers are here."""
        return set().union(*(executor.hosted() for executor in self._executors.values()))

    def end(self, key: Key) -> None:
        """End the driver wherever it is."""
        for executor in self._executors.values():
            executor.end(key)

    def close(self) -> None:
        """End all drivers."""
        for executor in self._executors.values():
            executor.close()


def build_executor(settings: Settings, host: Host) -> Executor:
    """The executors that the settings ask for. Raises ``NotConfigured`` where drivers would log in as the run-starter."""
    login(settings)
    return Dispatch(settings, host)
