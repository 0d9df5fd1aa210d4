"""Delta: a table remembers the highest ``txnVersion`` of each ``txnAppId``, and silently skips what is not higher.

An interval's ``txnAppId`` is its own, and an attempt's id the version, so commits of earlier attempts are skipped.
"""

from __future__ import annotations

import json
from typing import Any, Mapping

from retrofill.driver.kept import NotKept
from retrofill.driver.tables.marker import OF_A_BACKFILLS_INTERVAL, Marker, expired, is_of_another
from retrofill.driver.tables.protocol import NotPublished
from retrofill.driver.tables.states import as_of

RECENT_COMMITS = 20


class Delta:
    """Implements ``Format``."""

    def __init__(self, session: Any, table: str) -> None:
        self.session = session
        self.table = table

    def identity(self) -> str:
        (found,) = self.session.sql(f"DESCRIBE DETAIL {self.table}").select("id").collect()
        return f"delta {found.id}"

    def look(self, marker: Marker, *, again: bool) -> str | None:  # noqa: ARG002 - the attempt's id is the fence
        """A commit may be repeated: the table skips it, at once."""
        return None

    def published(self, marker: Marker) -> str | None:
        of_run = marker.identity
        found = self._commits(of_run, f" LIMIT {RECENT_COMMITS}") or self._commits(of_run)
        return found[0][0] if found else None

    def runs_published(self, marker: Marker) -> int:
        return len({each["run_id"] for _, each in self._commits(marker.only("installation", "attempt_id"))})

    def replace(self, rows: Any, condition: str, marker: Marker) -> str | None:
        from pyspark.sql.functions import expr

        values = marker.values
        application = f"retrofill {values['installation']} {values['pipeline']} {values['interval_start']}"
        writer = rows.writeTo(self.table).option("txnAppId", application).option("txnVersion", values["attempt_id"])
        writer.option("userMetadata", json.dumps({"retrofill": dict(values)})).overwrite(expr(condition))
        version = self.published(marker)
        if version is None:
            raise NotPublished(
                f"{self.table} has no commit of attempt {values['attempt_id']}: its log has a later attempt for the interval, "
                "or, on S3, another Spark server has overwritten the commit"
            )
        return version

    def keep(self, marker: Marker, days: int) -> None:
        """Delta keeps earlier versions by the table's own settings."""

    def before(self, marker: Marker) -> Any:
        commits = self._commits({})
        about = next((about for _, about in commits if marker.identity.items() <= about.items()), None)
        if about is None:
            raise NotKept(expired(self.table, marker))
        of_interval = {name: about[name] for name in OF_A_BACKFILLS_INTERVAL}
        first = min(int(version) for version, each in commits if of_interval.items() <= each.items())
        return as_of(self.session, self.table, first - 1)

    def after(self, marker: Marker) -> Any:
        return as_of(self.session, self.table, self._version(marker))

    def only_others_since(self, marker: Marker, own: Marker) -> bool:
        first = self._version(marker) + 1
        (last,) = self.session.sql(f"DESCRIBE HISTORY {self.table} LIMIT 1").select("version").collect()
        later = last.version + 1 - first
        if not later:
            return True
        ours = {int(version): about for version, about in self._commits({}, f" LIMIT {later}")}
        return all(is_of_another(ours.get(first + n, {}), own) for n in range(later))

    def _version(self, marker: Marker) -> int:
        """The version since the commit of the marker's run. Raises ``NotKept``."""
        version = self.published(marker)
        if version is None:
            raise NotKept(expired(self.table, marker))
        return int(version)

    def _commits(self, having: Mapping[str, str], limit: str = "") -> list[tuple[str, dict[str, str]]]:
        """The versions of our commits, the latest first, and what they say of themselves."""
        from pyspark.sql.functions import col

        history = self.session.sql(f"DESCRIBE HISTORY {self.table}{limit}").select("version", "userMetadata")
        ours = history.where(col("userMetadata").contains('"retrofill"')).collect()
        commits = [(str(row.version), _about(row.userMetadata)) for row in ours]
        return [(version, about) for version, about in commits if about and having.items() <= about.items()]


def _about(metadata: str) -> dict[str, str]:
    """What a commit of ours says of itself. Others may have the word in what they say."""
    try:
        said = json.loads(metadata)
    except ValueError:
        return {}
    about = said.get("retrofill") if isinstance(said, dict) else None
    return about if isinstance(about, dict) else {}
