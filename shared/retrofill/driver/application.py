"""The Spark application that an attempt uses, and its resource use, as far as Spark tells.

The use is that of its UI's REST API. Spark's documentation, "Monitoring and Instrumentation": jobs and stages are those
that the UI still has (``spark.ui.retainedJobs``, ``spark.ui.retainedStages``).
"""

from __future__ import annotations

import json
import platform
import threading
import time
from concurrent.futures import Future
from typing import Any, Callable, Collection, Iterable, Mapping
from urllib.parse import quote
from urllib.request import urlopen

from retrofill.driver.versions import settings_of
from retrofill.errors import kind_and_line
from retrofill.log import get_log
from retrofill.protocol.facts import Cost, SparkApplication

log = get_log(__name__)
MAX_ADDRESS = 1000


class ConnectApplication:
    """The application of the Spark Connect server, which a process asks for seldom."""

    def __init__(self, application: SparkApplication | None = None) -> None:
        # Of the server as it last answered: it may have been restarted since.
        self.application = application
        # Its version, as it was when the process started.
        self.version: str | None = None

    def ask(self, session: Any) -> None:
        """Ask the session's server."""
        try:
            self.application = application_of(settings_of(session))
        except Exception as e:  # noqa: BLE001 - it is only for people; who needs the session sees its errors
            log.warning("spark_application_unknown", error=kind_and_line(e))


def versions(spark: str | None) -> dict[str, str | None]:
    """What a driver that is ready says of itself."""
    return {"python": platform.python_version(), "spark": spark}


def application_of(settings: Mapping[str, str]) -> SparkApplication | None:
    """The application by its settings. Spark names its UI there only on YARN, or if the port was chosen."""
    id = settings.get("spark.app.id")
    return None if not id else SparkApplication(id=id[:200], ui=_short(_ui(settings)))


def application_of_context(context: Any) -> SparkApplication:
    """The application of a classic ``SparkContext``."""
    return SparkApplication(id=str(context.applicationId)[:200], ui=_short(context.uiWebUrl))


def _ui(settings: Mapping[str, str]) -> str | None:
    if (address := settings.get("spark.driver.appUIAddress")) is not None:
        return address
    host, port = settings.get("spark.driver.host"), settings.get("spark.ui.port", "0")
    served = settings.get("spark.ui.enabled", "true") == "true" and host and port != "0"
    return f"http://{host}:{port}" if served else None


def _short(address: str | None) -> str | None:
    return address if address and len(address) <= MAX_ADDRESS else None


# An attempt's end waits for the answers, which it asks for before it publishes, no longer than this; a run's end not at all.
WAIT_SECONDS = 2.0
# After a failure, no request is sent for a while, so that a UI that is away slows nothing down.
SECONDS, AGAIN_SECONDS, PAUSE_SECONDS = 5.0, 0.02, 60.0
FIRST_SECONDS = 30.0
_paused_until: dict[str, float] = {}


def cost_of(ui: str | None, tag: str | None) -> Cost | None:
    """The cost of the jobs that have ``tag``, or of all; ``None``: it is not known.

    ``ui``: the address of Spark's UI, as in http://spark:4040. Never raises.
    """
    if ui is None or time.monotonic() < _paused_until.get(ui, 0.0):
        return None
    try:
        return _read(_Rest(ui, SECONDS), tag)
    except (OSError, ValueError, KeyError, TypeError) as e:
        _paused_until[ui] = time.monotonic() + PAUSE_SECONDS
        log.info("cost_unknown", ui=ui, error=f"{type(e).__name__}: {e}")
        return None


def ask_first(ui: str | None) -> None:
    """Ask a UI that may have to load its REST API: its first answer takes seconds. Never raises."""
    if ui is None:
        return
    try:
        _Rest(ui, FIRST_SECONDS).get("")
    except (OSError, ValueError) as e:
        log.info("cost_unknown", ui=ui, error=f"{type(e).__name__}: {e}")


def begin_reading(read: Callable[[], Cost | None]) -> Future[Cost | None]:
    """Call ``read``, which never raises, in a thread."""
    found: Future[Cost | None] = Future()
    threading.Thread(target=lambda: found.set_result(read()), name="cost", daemon=True).start()
    return found


class _Rest:
    """The REST API, until ``seconds`` have passed."""

    def __init__(self, ui: str, seconds: float) -> None:
        self._root = f"{ui.rstrip('/')}/api/v1/applications"
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds left."""
        return self._end - time.monotonic()

    def get(self, path: str) -> Any:
        """One answer. Raises ``OSError`` if there is none in time."""
        if self.left() <= 0:
            raise TimeoutError(f"no answer within {self._seconds:g} s")
        with urlopen(f"{self._root}{path}", timeout=self.left()) as answer:
            return json.load(answer)


def _read(rest: _Rest, tag: str | None) -> Cost:
    applications = rest.get("")
    if len(applications) != 1:
        raise ValueError(f"the UI has {len(applications)} applications: it must be that of one")
    application = f"/{quote(applications[0]['id'], safe='')}"
    jobs = _jobs(rest, application, tag)
    stages = {id for job in jobs for id in job["stageIds"]}
    return _sum(each for each in rest.get(f"{application}/stages") if each["stageId"] in stages)


def _jobs(rest: _Rest, application: str, tag: str | None) -> list[Mapping[str, Any]]:
    """The jobs, once the UI knows that they ended: it learns this a little later than the driver."""
    while True:
        jobs = [job for job in rest.get(f"{application}/jobs") if tag is None or _has(job, tag)]
        if all(job["status"] != "RUNNING" for job in jobs) or rest.left() < SECONDS / 2:
            return jobs
        time.sleep(AGAIN_SECONDS)


def _has(job: Mapping[str, Any], tag: str) -> bool:
    """Spark Connect puts user and session before a tag (``ExecuteSessionTag`` of its server)."""
    tags: Collection[str] = job.get("jobTags", ())
    return any(each == tag or each.endswith(f"_Tag_{tag}") for each in tags)


def _sum(stages: Iterable[Mapping[str, Any]]) -> Cost:
    """Retried stages cost too. Of skipped ones all numbers are 0."""
    mine = list(stages)

    def total(name: str) -> int:
        return sum(int(each[name]) for each in mine)

    return Cost(
        core_seconds=total("executorRunTime") / 1000,
        shuffle_bytes=total("shuffleWriteBytes"),
        rows_read=total("inputRecords"),
        rows_written=total("outputRecords"),
    )
