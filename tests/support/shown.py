"""All that an installation shows to anyone, for tests that nothing there is secret."""

from __future__ import annotations

from retrofill_core.contract.topics import Topic
from tests.support.installation import Installation


def everything(made: Installation) -> dict[str, str]:
    """All logs, topics and tables as text."""
    found = {str(log): log.read_text(errors="replace") for log in made.settings.home.rglob("*.log*")}
    for topic in Topic:
        found[topic] = "".join(f"{e.key} {e.value!r} {e.headers}" for e in made.events(topic, progress=True))
    for row in made.query("SELECT tablename AS name FROM pg_tables WHERE schemaname = 'retrofill'"):
        found[row["name"]] = str(made.query(f"SELECT t::text AS row FROM {row['name']} AS t"))
    return found
