"""The embedded broker's storage belongs to a release of Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofill_core.settings import Settings
from retrofill_tools.stack import kafka
from retrofill_tools.stack.layout import KAFKA, Identity, Layout


def prepare(home: Path, written_by: str | None) -> list[str]:
    """Prepare a broker on storage that was formatted before."""
    layout = Layout(home)
    layout.make()
    storage = layout.data(KAFKA)
    storage.mkdir()
    (storage / "meta.properties").touch()
    if written_by is not None:
        (storage / kafka.WRITTEN_BY).write_text(written_by)
    identity = Identity("stack", "cluster", {}, "")
    settings = Settings(home=home, embedded_kafka_auth=False)
    return kafka.prepare(
        layout, identity, settings, Path("java"), Path("jars"), {"kafka": 1, "kafka_controller": 2}, {}
    )


@pytest.mark.parametrize("written_by", [f"{kafka.VERSION}\n", "4.2.0", "4.2.10", "4.0.1", "3.9.1"])
def test_storage_of_the_same_or_an_earlier_release_is_used(tmp_path: Path, written_by: str) -> None:
    assert "kafka.Kafka" in prepare(tmp_path, written_by)


@pytest.mark.parametrize(
    ("written_by", "named"),
    [
        (None, "another release of Kafka"),
        ("", "another release of Kafka"),
        ("4.3.0\n", "Kafka 4.3.0"),
        ("4.10.1", "Kafka 4.10.1"),
        ("5.0.0", "Kafka 5.0.0"),
    ],
)
def test_storage_of_a_later_release_is_refused_with_what_to_do(
    tmp_path: Path, written_by: str | None, named: str
) -> None:
    with pytest.raises(OSError, match=named) as refused:
        prepare(tmp_path, written_by)
    assert "RETROFILL_HOME" in str(refused.value) and "\n" not in str(refused.value)
