"""State of a session that runs and tasks use in turn: as it was before the first, and its tags."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Mapping

from retrofill.driver.versions import JobTags, settings_of


class Tags(threading.local):
    """The tags of a thread's jobs. A thread of the user's may serve one task after another."""

    task: str | None = None

    def put(self, session: Any, attempt: str, task: str) -> None:
        """Tag the jobs of the calling thread, and no longer with its last task."""
        tags = JobTags(session)
        tags.add(attempt)
        if self.task not in (None, task):
            tags.remove(self.task)
        tags.add(task)
        self.task = task


@dataclass(frozen=True)
class Fresh:
    """A session's state before the first run of a batch, which every run begins with.

    Cached data is not part of it: clearing the cache would empty everybody's.
    """

    settings: Mapping[str, str]
    catalog: str
    schema: str

    @classmethod
    def of(cls, session: Any) -> Fresh:
        """The state as it is."""
        return cls(settings_of(session), session.catalog.currentCatalog(), session.catalog.currentDatabase())

    def restore(self, session: Any) -> None:
        """Drop temporary views and tags, and restore settings, current catalog and schema."""
        # Lists the session's own views too, and unlike others it asks no metastore.
        for view in session.sql("SHOW VIEWS IN global_temp").collect():
            if not view.namespace:
                session.catalog.dropTempView(view.viewName)
        now = Fresh.of(session)
        for key in now.settings.keys() - self.settings.keys():
            session.conf.unset(key)
        for key, value in self.settings.items():
            if now.settings.get(key) != value:
                session.conf.set(key, value)
        # A catalog remembers its schema, so each may differ alone.
        if now.catalog != self.catalog:
            session.catalog.setCurrentCatalog(self.catalog)
        if (now.catalog, now.schema) != (self.catalog, self.schema):
            session.catalog.setCurrentDatabase(self.schema)
        JobTags(session).clear()
