"""The Spark application that an attempt uses, as far as Spark tells."""

from __future__ import annotations

import platform
from typing import Any, Mapping

from retrofill.driver.versions import settings_of
from retrofill.errors import kind_and_line
from retrofill.log import get_log
from retrofill.protocol.facts import SparkApplication

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
