"""Whether an attempt's own Spark session is gone: told by who raised an error and by its condition, never by what it says.

The client of the attempt's session shows every error of its calls to its retry policy. One that our policy has seen is of our
own session; the same error of another session, or of a user's own gRPC call, is the user's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from retrofill.errors import first_line

# Spark's names for a session that is not, or not any more, or not the one that the client knew.
GONE = frozenset(
    {
        "INVALID_HANDLE.SESSION_CLOSED",
        "INVALID_HANDLE.SESSION_NOT_FOUND",
        "INVALID_HANDLE.SESSION_CHANGED",
        "NO_ACTIVE_SESSION",
    }
)
CLOSED = frozenset({"INVALID_HANDLE.SESSION_CLOSED", "INVALID_HANDLE.SESSION_NOT_FOUND"})
_SEEN_BY = "_retrofill_seen_by"


def witness(**limits: Any) -> Any:
    """Spark's own retry policy within ``limits``, which marks every error that it is shown as its own."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    class Witness(DefaultPolicy):  # type: ignore[misc]  # Spark's own types are not looked at
        def can_retry(self, e: BaseException) -> bool:
            setattr(e, _SEEN_BY, self)
            return bool(super().can_retry(e))

    return Witness(**limits)


def loss_in(error: BaseException, policy: object) -> BaseException | None:
    """What a call of the policy's client raised that found its session gone, or its server away for too long."""
    return next((e for e in errors_of(error) if _says_gone(e, policy)), None)


def line_of(loss: BaseException) -> str:
    """What was found, on one line."""
    import grpc  # type: ignore[import-untyped]

    if isinstance(loss, grpc.RpcError):
        return f"its server does not answer: {loss.details()}"
    return first_line(loss)


def _says_gone(error: BaseException, policy: object) -> bool:
    if getattr(error, _SEEN_BY, None) is policy:
        return _condition(error) in GONE or _is_unavailable(error) or _is_another_server(error)
    # What the policy sees is converted before it is raised.
    return getattr(error.__context__, _SEEN_BY, None) is policy and _condition(error) in GONE


def gone_in(error: BaseException) -> BaseException | None:
    """What says that a session is gone, whoever's it is."""
    return next((e for e in errors_of(error) if condition(e) in GONE), None)


def of_spark_in(error: BaseException) -> BaseException | None:
    """The error of Spark, of its Java side or of the connection with that which is behind it."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return next((e for e in errors_of(error) if isinstance(e, PySparkException | Py4JError | ConnectionError)), None)


def condition(error: BaseException) -> str | None:
    """Spark's name for what went wrong, where the error has one."""
    from pyspark.errors import PySparkException

    return error.getCondition() if isinstance(error, PySparkException) else None


def _condition(error: BaseException) -> str | None:
    """The same, and what the client found when it came back for the rest of an answer."""
    name = condition(error)
    if name == "RESPONSE_ALREADY_RECEIVED":
        return (error.getMessageParameters() or {}).get("error_type")  # type: ignore[attr-defined]
    return name


def errors_of(error: BaseException) -> Iterator[BaseException]:
    """The error and all that it came from, also where a handler did not name its cause, or several came together."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        e = waiting.pop(0)
        if id(e) in seen:
            continue
        seen.add(id(e))
        yield e
        group = e.exceptions if isinstance(e, BaseExceptionGroup) else ()
        waiting += [other for other in (e.__cause__, e.__context__, *group) if other is not None]


def _is_unavailable(error: BaseException) -> bool:
    """What the client raises only after all its tries."""
    import grpc

    return isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.UNAVAILABLE


def _is_another_server(error: BaseException) -> bool:
    """How the client says that an answer came from a server that was started anew."""
    from pyspark.errors import PySparkAssertionError

    return isinstance(error, PySparkAssertionError)
