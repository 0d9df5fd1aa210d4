"""Differences between Spark's versions, from 3.5 on. Each is found by asking for the newer one."""

from __future__ import annotations

import atexit
import warnings
from typing import Any, Callable, Mapping


def settings_of(session: Any) -> dict[str, str]:
    """All settings of a session. Spark 3.5 masks secret ones."""
    if hasattr(type(session.conf), "getAll"):
        return dict(session.conf.getAll)
    return {row.key: row.value for row in session.sql("SET").collect()}


def set_all(session: Any, conf: Mapping[str, str]) -> None:
    """Set a session's settings. Like Spark's builder, only warn about those that cannot be changed."""
    if hasattr(session.conf, "_set_all"):
        session.conf._set_all(configs=dict(conf), silent=True)
        return
    for name, value in conf.items():
        try:
            session.conf.set(name, value)
        except Exception as e:  # noqa: BLE001 - as Spark's builder does
            warnings.warn(str(e), stacklevel=2)


def watch_calls(client: Any, policy: Any, limits: Mapping[str, Any], seen: Callable[[BaseException], object]) -> None:
    """Have a Connect client retry as ``limits`` say, and call ``seen`` with each error that its calls raise.

    ``policy``: a retry policy that does so by itself, which clients take from Spark 4.0 on.
    """
    if hasattr(client, "set_retry_policies"):
        client.set_retry_policies([policy])
        return
    client._retry_policy.update(limits)
    handle = client._handle_error

    def handle_seen(error: BaseException) -> Any:
        seen(error)
        return handle(error)

    client._handle_error = handle_seen


def close_by_stop_only() -> None:
    """Keep the garbage collector from closing Connect sessions, which ``stop`` closes.

    Before Spark 4.2, a collection within a request waits for ever for a lock of that request's thread.
    """
    from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
    from pyspark.sql.connect.session import SparkSession

    if not hasattr(ExecutePlanResponseReattachableIterator, "shutdown_threadpool_if_idle"):
        SparkSession.__del__ = _leave


def _leave(_: Any) -> None:
    """Its channel closes itself."""


def leave_at_exit(client: Any) -> None:
    """Let a client end with its session.

    From Spark 4.1 on, each client is kept until the process exits, and then calls its server, or retries for minutes
    if there is none. A session that is closed needs no such call.
    """
    if hasattr(client, "_cleanup_ml_cache"):
        atexit.unregister(client._cleanup_ml_cache)


def has_release(client: Any) -> bool:
    """Whether a client can close its session on the server, also that of another client."""
    return hasattr(client, "release_session")


def _is_before_4() -> bool:
    import pyspark

    return int(pyspark.__version__.split(".")[0]) < 4


class JobTags:
    """The tags of the calling thread's jobs, of a Connect or classic session."""

    def __init__(self, session: Any) -> None:
        # A classic session of Spark 3.5 has these methods too, which raise errors.
        of_session = type(session).__module__.startswith("pyspark.sql.connect") or not _is_before_4()
        owner = session if of_session else session.sparkContext
        self.add = owner.addTag if of_session else owner.addJobTag
        self.remove = owner.removeTag if of_session else owner.removeJobTag
        self.clear = owner.clearTags if of_session else owner.clearJobTags
        self.interrupt = owner.interruptTag if of_session else owner.cancelJobsWithTag
