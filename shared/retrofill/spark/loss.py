"""Recognizes a lost Spark session by an error's origin and condition, never by its text.

The session's client passes every error of its calls to its retry policy, so an error that our
policy has seen comes from our session. The same error from another session or from a user's own
gRPC call is the user's.
"""

from __future__ import annotations

import sys
from typing import Any, Iterator

from retrofill.errors import first_line

# Spark's error conditions for a session that does not exist, was closed or was replaced.
GONE = frozenset(
    {
        "INVALID_HANDLE.SESSION_CLOSED",
        "INVALID_HANDLE.SESSION_NOT_FOUND",
        "INVALID_HANDLE.SESSION_CHANGED",
        "NO_ACTIVE_SESSION",
    }
)
CLOSED = frozenset({"INVALID_HANDLE.SESSION_CLOSED", "INVALID_HANDLE.SESSION_NOT_FOUND"})
# What a server that is being stopped says of jobs, apart from errors without a condition: it cancels those that run, and
# reports an illegal state of the stopped context as an internal error.
_OF_A_STOP = ("OPERATION_CANCELED", "INTERNAL_ERROR")
_SEEN_BY = "_retrofill_seen_by"


def witness(**limits: Any) -> Any:
    """Spark's default retry policy with ``limits``, which also marks every error that it sees."""
    try:
        from pyspark.sql.connect.client.retries import DefaultPolicy
    except ImportError:
        # Spark 3.5 has no policies. What stands for one only tells clients apart.
        return object()

    class Witness(DefaultPolicy):  # type: ignore[misc]  # pyspark is not type-checked
        def can_retry(self, e: BaseException) -> bool:
            mark(self, e)
            return bool(super().can_retry(e))

    return Witness(**limits)


def mark(policy: object, error: BaseException) -> None:
    """Remember that the policy's client raised the error."""
    setattr(error, _SEEN_BY, policy)


def loss_in(error: BaseException, policy: object) -> BaseException | None:
    """The error that shows the policy's client lost its session or its server, if any."""
    return next((e for e in errors_of(error) if _shows_loss(e, policy)), None)


def line_of(loss: BaseException) -> str:
    # A classic session does without it.
    grpc = sys.modules.get("grpc")
    if grpc is not None and isinstance(loss, grpc.RpcError):
        return f"its server does not answer: {loss.details()}"
    return first_line(loss)


def is_of_server(loss: BaseException) -> bool:
    """Whether a Connect session was lost with its whole server: that stops, does not answer, or is another one now.

    One that is as it was knows the sessions that it closed. The client closes its own when it meets another server.
    """
    return _condition(loss) != "INVALID_HANDLE.SESSION_CLOSED"


def is_of(error: BaseException, policy: object) -> bool:
    """Whether the policy's client raised the error, or one of those behind it."""
    return any(getattr(e, _SEEN_BY, None) is policy for e in errors_of(error))


def may_be_of_a_stop(error: BaseException) -> bool:
    """Whether a server that stops could fail a call like that. Errors that say what was wrong with the call are not such."""
    import grpc
    from pyspark.errors import PySparkException

    all_of_it = list(errors_of(error))
    refused = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    if any(isinstance(e, grpc.RpcError) and e.code() in refused for e in all_of_it):
        return False
    conditions = [_condition(e) for e in all_of_it if isinstance(e, PySparkException)]
    return all(each is None or each.startswith(_OF_A_STOP) for each in conditions)


def _shows_loss(error: BaseException, policy: object) -> bool:
    if getattr(error, _SEEN_BY, None) is policy:
        return _condition(error) in GONE or _is_unavailable(error) or _is_another_server(error)
    # The client converts errors after the policy has seen them.
    return getattr(error.__context__, _SEEN_BY, None) is policy and _condition(error) in GONE


def gone_in(error: BaseException) -> BaseException | None:
    """The error that reports a lost session, of any client, if any."""
    return next((e for e in errors_of(error) if condition(e) in GONE), None)


def of_spark_in(error: BaseException) -> BaseException | None:
    """The underlying error of Spark, its JVM or the connection to that, if any."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return next((e for e in errors_of(error) if isinstance(e, (PySparkException, Py4JError, ConnectionError))), None)


def condition(error: BaseException) -> str | None:
    """Spark's error condition, if the error has one."""
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException):
        return None
    # Before Spark 4.0 it is called a class.
    name: str | None = error.getCondition() if hasattr(error, "getCondition") else error.getErrorClass()
    return name


def _condition(error: BaseException) -> str | None:
    """The error condition, or the one of an interrupted response that the client resumed."""
    name = condition(error)
    if name == "RESPONSE_ALREADY_RECEIVED":
        return (error.getMessageParameters() or {}).get("error_type")  # type: ignore[attr-defined]
    return name


def errors_of(error: BaseException) -> Iterator[BaseException]:
    """The error and all its causes, contexts and group members."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        e = waiting.pop(0)
        if id(e) in seen:
            continue
        seen.add(id(e))
        yield e
        # Groups of errors are known from Python 3.11 on.
        group = getattr(e, "exceptions", None) or ()
        waiting += [other for other in (e.__cause__, e.__context__, *group) if isinstance(other, BaseException)]


def _is_unavailable(error: BaseException) -> bool:
    """Whether the server is unavailable. The client raises this only after all its retries."""
    import grpc

    return isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.UNAVAILABLE


def _is_another_server(error: BaseException) -> bool:
    """Whether the response came from a restarted server, which the client reports by this type."""
    from pyspark.errors import PySparkAssertionError

    return isinstance(error, PySparkAssertionError)
