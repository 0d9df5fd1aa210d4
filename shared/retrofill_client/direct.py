"""Requests by Kafka and states from Postgres, with the settings of the installation: the documents of the HTTP API."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from confluent_kafka import KafkaException
from pydantic import ValidationError
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from retrofill.errors import NotConfigured, NotThere, UserError, WrongUsage
from retrofill_client.errors import BadRequest, NoAnswer, NotFound, Refused, Unreachable
from retrofill_core.contract.backfills import (
    BackfillCancelRequested,
    BackfillDiscardRequested,
    BackfillPauseRequested,
    BackfillPublishRequested,
    BackfillRequested,
    BackfillResumeRequested,
    BackfillUndoRequested,
    RunRetryRequested,
)
from retrofill_core.contract.base import Message, explain
from retrofill_core.contract.topics import Topic
from retrofill_tools.client import kafka
from retrofill_tools.client.backfills import describe_backfill, find_backfill, find_backfills
from retrofill_tools.client.connect import explain_kafka, explain_postgres, load_settings, local_user, reading
from retrofill_tools.client.documents import encoded
from retrofill_tools.client.pipelines import applied_pipelines, find_pipeline, last_applied_at, pipeline_as_json
from retrofill_tools.client.previews import look_ahead
from retrofill_tools.client.requests import message_of, requested_again
from retrofill_tools.client.runs import describe_run, find_run, find_runs

ANSWER_SECONDS = 30.0
FAILURES = 10


class Direct:
    """Implements ``client.Transport``."""

    def __init__(self) -> None:
        """Raises ``BadRequest`` if a setting is wrong."""
        try:
            self._settings = load_settings()
        except UserError as e:
            raise BadRequest(str(e)) from e

    def get(self, path: Sequence[str], query: Mapping[str, Any] | None = None) -> Any:
        """The document at a path, as below ``/api/v1/``."""
        with self._errors(), self._reading() as conn:
            # Plain JSON, as programs get it by HTTP.
            return json.loads(encoded(self._found(conn, tuple(path), query or {})))

    def _found(self, conn: Connection, path: tuple[str, ...], query: Mapping[str, Any]) -> object:
        match path:
            case ("backfills",):
                return find_backfills(conn, query.get("pipeline"), query.get("state", ()), query["limit"])
            case ("backfills", id):
                return describe_backfill(conn, find_backfill(conn, id), FAILURES)
            case ("runs",):
                find_backfill(conn, query["backfill"])
                return find_runs(conn, query["backfill"], query.get("state", ()), query["limit"])
            case ("runs", id):
                if (run := find_run(conn, int(id))) is None:
                    raise NotThere(f"there is no run {id}")
                return describe_run(conn, run)
            case ("pipelines",):
                return applied_pipelines(conn)
            case ("pipelines", name):
                return pipeline_as_json(find_pipeline(conn, name).definition, last_applied_at(conn, name))
        raise AssertionError(path)

    def post(self, path: Sequence[str], body: Mapping[str, Any]) -> Any:
        """The answer to a request."""
        with self._errors():
            if tuple(path) == ("preview",):
                with self._reading() as conn:
                    found = look_ahead(conn, self._settings, message_of(BackfillRequested, body)).as_json(each=False)
                return json.loads(encoded(found))
            key, message = self._message(tuple(path), body)
            answer = kafka.ask(self._settings, Topic.BACKFILL_REQUESTS, key, message, ANSWER_SECONDS)
            if kafka.is_refusal(answer):
                raise Refused(str(getattr(answer, "message", answer.type)), getattr(answer, "reason", None))
            return {"id": key}

    def _message(self, path: tuple[str, ...], body: Mapping[str, Any]) -> tuple[str, Message]:
        match path:
            case ("backfills",):
                return body["id"], message_of(BackfillRequested, {**body, "triggered_by": local_user()})
            case ("backfills", id, "pause"):
                return id, BackfillPauseRequested()
            case ("backfills", id, "resume"):
                return id, message_of(BackfillResumeRequested, body)
            case ("backfills", id, "cancel"):
                return id, BackfillCancelRequested()
            case ("backfills", id, "publish"):
                return id, message_of(BackfillPublishRequested, body)
            case ("backfills", id, "discard"):
                return id, BackfillDiscardRequested()
            case ("backfills", id, "undo"):
                given = {**body, "undoes": id, "triggered_by": local_user()}
                return body["id"], message_of(BackfillUndoRequested, given)
            case ("backfills", id, "retry"):
                with self._reading() as conn:
                    of = find_backfill(conn, id)
                    if of.ended_at is None:
                        return id, RunRetryRequested(all_failed=True)
                    return str(uuid.uuid4()), requested_again(conn, of, local_user()).request
        raise AssertionError(path)

    def changes(self, id: str) -> Iterator[Mapping[str, Any]]:
        """The changes of a review. Spark computes them."""
        from retrofill_tools.client.comparing import review_of

        with self._errors():
            with self._reading() as conn:
                review = review_of(conn, find_backfill(conn, id))
            with review.changes(self._settings) as changes:
                for change in changes:
                    yield json.loads(encoded(change.as_json()))

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with reading(self._settings) as conn:
            yield conn

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except kafka.NoAnswer as e:
            raise NoAnswer(str(e)) from e
        except NotThere as e:
            raise NotFound(str(e)) from e
        except WrongUsage as e:
            raise BadRequest(str(e)) from e
        except ValidationError as e:
            raise BadRequest(explain(e)) from e
        except UserError as e:
            raise Refused(str(e)) from e
        except NotConfigured as e:
            raise Unreachable(str(e)) from e
        except KafkaException as e:
            raise Unreachable(explain_kafka(self._settings, e)) from e
        except (SQLAlchemyError, psycopg.Error) as e:
            raise Unreachable(explain_postgres(e)) from e
