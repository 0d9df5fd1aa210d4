"""A Dagster resource that requests backfills and waits for them: ``RetrofillResource``.

Install the package ``retrofill`` beside Dagster with ``--no-deps``: of it, only ``retrofill_client`` is used, which needs the
standard library.
"""

from __future__ import annotations

from typing import Any

from dagster import ConfigurableResource, Failure, MetadataValue, get_dagster_logger

from retrofill_client import Backfill, BackfillFailed, Client


class RetrofillResource(ConfigurableResource):
    """``url``: the console's address. ``token``: of the role ``publish``, or ``request`` for backfills with a review."""

    url: str
    token: str

    @property
    def client(self) -> Client:
        """All that the client can do."""
        return Client(url=self.url, token=self.token)

    def backfill(self, run_id: str, pipeline: str, start: Any, end: Any, **options: Any) -> Backfill:
        """Requests the logical dates from ``start`` to ``end``, inclusive, and returns the backfill when it has succeeded.

        ``run_id``: the step's run, of which the backfill's id is made: a step that is executed again after its process was lost
        waits for the same backfill. ``options`` are those of ``Client().backfills.create``. Raises ``Failure``, with the reason
        and the console's page of the backfill.
        """
        log, seen = get_dagster_logger(), [""]

        def tell(now: Backfill) -> None:
            counts = f"{now.state}: " + ", ".join(
                f"{number:,} {state}" for state, number in now.by_state.items() if number
            )
            if counts != seen[0]:
                log.info(f"backfill {now.id}: {counts}")
                seen[0] = counts

        made = self.client.backfills.create(pipeline, start, end, id=f"dagster.{run_id}.{pipeline}", **options)
        page = {"backfill": MetadataValue.url(f"{self.url.rstrip('/')}/backfills/{made.id}")}
        try:
            return made.wait(on_progress=tell)
        except BackfillFailed as e:
            raise Failure(str(e), metadata=page) from e
