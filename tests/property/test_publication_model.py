"""Publishers stopped at every point and resumed at every later one, on a real file system: a later
publication always stands.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.support.tiers import some

from retrofill.outputs import publication as publication_module
from retrofill.outputs.kept import AREA, KEPT, MARKER, NotKept, copy, find, find_before, key_of, put_marker, sweep
from retrofill.outputs.places import PlaceTaken
from retrofill.outputs.publication import (
    Publication,
    PublishedAgain,
    StagedOutputGone,
    Written,
    own_folder,
    publish,
    published_by,
    seal,
    sealed_folder,
    sealing,
    steps,
)

# Attempts are numbered across all runs, so their ids are larger than those of these few runs.
ATTEMPT_ID = 25
INSTALLATION = "here"
# Replaced output is kept for so many days: set by the fixture ``way``.
KEEP = 0


def run(id: int) -> str:
    return key_of(INSTALLATION, id)


def staged(
    target: Path, run_id: int, attempt_id: int = ATTEMPT_ID, text: str = "", backfill: str | None = None
) -> Publication:
    """A run's sealed output, as its driver leaves it."""
    folder = own_folder(target, run(run_id)) / f"{attempt_id}.writing-1"
    (folder / "new").mkdir(parents=True)
    (folder / "new" / "part-0").write_text(text or f"run {run_id}")
    of = {} if backfill is None else {"backfill_id": backfill}
    seal([Written(folder, target, run(run_id), {"run": run(run_id), "attempt_id": attempt_id, **of})], attempt_id)
    return Publication(target, run(run_id), attempt_id, 0, KEEP)


def undo(target: Path, run_id: int, undoes: int) -> Publication:
    """A sealed output of a run that undoes another."""
    kept = find_before(target, run(undoes))
    folder = own_folder(target, run(run_id)) / f"{ATTEMPT_ID}.writing-1"
    folder.mkdir(parents=True)
    copy(kept, folder / "new")
    about = {"run": run(run_id), "undoes": run(undoes), "output_of": kept.run}
    seal([Written(folder, target, run(run_id), about)], ATTEMPT_ID)
    return Publication(target, run(run_id), ATTEMPT_ID, 0, KEEP)


def again(publication: Publication, number: int) -> Publication:
    """The same output, for publication by another driver."""
    return replace(publication, number=number)


class Publisher:
    """A publisher that can be stopped before each of its changes."""

    def __init__(self, publication: Publication, before: Iterable[str] = ()) -> None:
        self._steps = itertools.chain(before, steps(publication))
        self.ended = False
        self.gone = False
        self.refused = False

    def step(self) -> None:
        """Continue to the next pause."""
        try:
            next(self._steps)
        except StopIteration:
            self.ended = True
        except StagedOutputGone:
            self.ended = self.gone = True
        except (PublishedAgain, PlaceTaken):
            self.ended = self.refused = True

    def until(self, name: str) -> None:
        """Continue until it is about to do this."""
        while next(self._steps) != name:
            assert not self.ended

    def go(self, count: int) -> None:
        """Take up to ``count`` steps."""
        for _ in range(count):
            if not self.ended:
                self.step()

    def finish(self) -> None:
        """Continue to the end."""
        while not self.ended:
            self.step()


def content(target: Path) -> str:
    """What a reader sees."""
    return (target / "part-0").read_text()


def length(make: Publication) -> int:
    """The number of steps in an undisturbed publication."""
    publisher = Publisher(make)
    count = 0
    while not publisher.ended:
        publisher.step()
        count += 1
    return count


def beside(target: Path) -> list[str]:
    """What is left of publications, without what they have replaced."""
    return [path.name for path in (target.parent / AREA).iterdir() if path.name != KEPT]


WAYS = ("exchange", "rename", "exchange and keep", "rename and keep")
# ``make test``: the default, and where directories cannot be exchanged.
interleaved = pytest.mark.parametrize("way", some(WAYS, "exchange and keep", "rename"), indirect=True)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where directories can be exchanged, and where they cannot; with what they replace kept, or not."""
    way, _, keep = str(request.param).partition(" and ")
    monkeypatch.setattr(sys.modules[__name__], "KEEP", 7 if keep else 0)
    if way == "rename":
        monkeypatch.setattr(publication_module, "exchange", lambda *_: None)
    return way


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory, if the machine has such a file system: some tests make tens of thousands of folders."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as name:
        yield Path(name)


@pytest.fixture
def target(way: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An output that an earlier run has published. These tests do not simulate power loss, so
    nothing is flushed to disk.
    """
    for name in ("sync", "sync_all", "sync_trees"):
        monkeypatch.setattr(publication_module, name, lambda _: None)
    target = folder / "table" / "day=2013-01-01"
    publish(staged(target, 1))
    return target


def fresh(target: Path) -> None:
    """Recreate the state that the fixture provides."""
    shutil.rmtree(target.parent, ignore_errors=True)
    publish(staged(target, 1))


def test_a_publication_replaces_the_whole_folder_and_leaves_nothing_beside_it(target: Path) -> None:
    (target / "part-of-an-older-one").write_text("x")
    publish(staged(target, 2))
    assert sorted(path.name for path in target.iterdir()) == ["_retrofill.json", "part-0"]
    assert (content(target), published_by(target)) == ("run 2", run(2))
    assert beside(target) == []


def test_where_directories_can_be_exchanged_readers_always_see_one(target: Path, way: str) -> None:
    publisher = Publisher(staged(target, 2))
    seen = []
    while not publisher.ended:
        publisher.step()
        seen.append(published_by(target))
    assert sorted(set(seen), key=str) == ([run(1), run(2)] if way == "exchange" else [run(1), run(2), None])


def test_an_output_that_somebody_deletes_meanwhile_is_published_all_the_same(target: Path) -> None:
    for stop in range(length(staged(target, 2))):
        fresh(target)
        publisher = Publisher(staged(target, 2))
        publisher.go(stop)
        if published_by(target) != run(2):
            shutil.rmtree(target, ignore_errors=True)
        publisher.finish()
        assert content(target) == "run 2", f"stopped after {stop} steps"


def test_it_may_be_repeated(target: Path) -> None:
    publication = staged(target, 2)
    publish(publication)
    publish(publication)
    publish(again(publication, 3))
    assert content(target) == "run 2"


def test_output_that_somebody_deleted_is_not_called_published(target: Path) -> None:
    publication = staged(target, 2)
    shutil.rmtree(own_folder(target, run(2)))
    with pytest.raises(StagedOutputGone, match=r"the output that run 2 staged for .* is no longer in "):
        publish(publication)
    assert content(target) == "run 1"


@pytest.mark.parametrize("marker", ["", "{", "[]", '{"run": 2'])
def test_output_whose_marker_cannot_be_read_is_not_called_published(target: Path, marker: str) -> None:
    """It could be what a former publisher has replaced, but then the run's own would be published."""
    publication = staged(target, 2)
    (sealed_folder(target, run(2), ATTEMPT_ID) / "new" / MARKER).write_text(marker)
    with pytest.raises(StagedOutputGone):
        publish(publication)
    assert content(target) == "run 1"


def test_what_user_code_makes_of_modules_does_not_reach_a_publisher(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's output is published while the attempt's next run is under way in the same process."""

    def refused(*_: object, **__: object) -> None:
        raise ValueError("no luck")

    publication = staged(target, 2)
    for name in ("dumps", "loads"):
        monkeypatch.setattr(json, name, refused)
    publish(publication)
    monkeypatch.undo()
    assert (content(target), published_by(target)) == ("run 2", run(2))


def test_a_publisher_stopped_anywhere_and_woken_after_a_later_run_changes_nothing(target: Path) -> None:
    for stop in range(length(staged(target, 2)) + 1):
        fresh(target)
        former = Publisher(staged(target, 2))
        former.go(stop)
        # Its run ended (another driver published it, or it failed), and the interval was processed
        # again.
        publish(staged(target, 3))
        before = snapshot(target)
        former.finish()
        assert snapshot(target) == before, f"stopped after {stop} steps"
        assert published_by(target) == run(3)


@pytest.mark.parametrize("others", [1, 2])
def test_a_publisher_stopped_anywhere_is_replaced_by_another_of_the_same_run(target: Path, others: int) -> None:
    longest = length(staged(target, 2))
    for stops in itertools.product(range(longest + 1), repeat=others):
        fresh(target)
        publication = staged(target, 2)
        stopped = [Publisher(again(publication, number)) for number in range(others)]
        for publisher, stop in zip(stopped, stops, strict=True):
            publisher.go(stop)
        last = Publisher(again(publication, others))
        last.finish()
        assert not last.gone, f"stopped after {stops}"
        assert content(target) == "run 2"
        # Resumed in either order.
        for publisher in reversed(stopped):
            publisher.finish()
            assert content(target) == "run 2", f"stopped after {stops}"


@pytest.fixture
def switches(pytestconfig: pytest.Config) -> int:
    """The bound of ``interleavings``: their number grows with its power."""
    return 3 if pytestconfig.getoption("--long") else 2


def interleavings(counts: tuple[int, int], switches: int) -> Iterator[tuple[int, ...]]:
    """All orders of the two publishers' steps with up to ``switches`` switches, either publisher
    first.
    """
    for first in (0, 1):
        yield from _go_on(counts, first, switches)


def _go_on(counts: tuple[int, int], who: int, switches: int) -> Iterator[tuple[int, ...]]:
    mine, others = counts[who], counts[1 - who]
    if switches == 0 or others == 0:
        yield (who,) * mine + (1 - who,) * others
        return
    for taken in range(mine + 1):
        left = (mine - taken, others) if who == 0 else (others, mine - taken)
        yield from ((who,) * taken + order for order in _go_on(left, 1 - who, switches - 1))


@interleaved
def test_two_publishers_of_one_run_in_every_interleaving(target: Path, switches: int) -> None:
    longest = length(staged(target, 2))
    # The second publisher needs more steps, because it takes over what the first one had.
    for order in interleavings((longest, longest + 2), switches):
        fresh(target)
        publication = staged(target, 2)
        publishers = [Publisher(publication), Publisher(again(publication, 1))]
        for who in order:
            publishers[who].go(1)
        for publisher in publishers:
            publisher.finish()
        assert not publishers[1].gone, f"the newest publisher must get through: {order}"
        assert (content(target), published_by(target)) == ("run 2", run(2)), order
        assert not KEEP or kept_of(target, 2) == "run 1", order


@interleaved
def test_a_former_run_and_a_later_one_in_every_interleaving(target: Path, switches: int) -> None:
    former_steps, later_steps = length(staged(target, 2)), length(staged(target, 3))
    for order in interleavings((former_steps, later_steps + 2), switches):
        fresh(target)
        publishers = [Publisher(staged(target, 2)), Publisher(staged(target, 3))]
        for who in order:
            publishers[who].go(1)
        publishers[1].finish()
        assert content(target) == "run 3", order
        publishers[0].finish()
        assert (content(target), published_by(target)) == ("run 3", run(3)), order


@pytest.mark.parametrize("other", [9, ATTEMPT_ID + 1])
@pytest.mark.parametrize("number", [0, 2])
def test_what_another_attempt_of_the_run_sealed_is_not_published_and_goes_with_it(
    target: Path, other: int, number: int
) -> None:
    """It was lost before it was accepted, or it is a straggler of a later one. Ids that begin with the
    same digits are others too.
    """
    staged(target, 2, other, "not accepted")
    staged(target, 2, int(f"{ATTEMPT_ID}1"), "not accepted")
    publish(again(staged(target, 2), number))
    assert content(target) == "run 2"
    assert beside(target) == []


def test_a_publisher_whose_attempt_was_not_accepted_finds_nothing(target: Path) -> None:
    staged(target, 2)
    with pytest.raises(StagedOutputGone):
        publish(Publication(target, run(2), ATTEMPT_ID + 1, 1))
    assert content(target) == "run 1"


def test_a_straggler_that_still_writes_for_an_earlier_run_is_never_published(target: Path) -> None:
    former = Publisher(staged(target, 2))
    former.go(3)
    publish(staged(target, 3))
    # Spark recreates the folders that a later publication has deleted.
    late = own_folder(target, run(2)) / f"{ATTEMPT_ID}.writing-1" / "new"
    late.mkdir(parents=True)
    (late / "part-0").write_text("too late")
    former.finish()
    assert content(target) == "run 3"
    publish(staged(target, 4))
    assert not own_folder(target, run(2)).exists()


def test_who_writes_to_the_output_itself_is_displaced(target: Path, way: str) -> None:
    publisher = Publisher(staged(target, 2))
    publisher.until(f"publish:{way}")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    (target / "part-of-somebody").write_text("x")
    publisher.finish()
    assert sorted(path.name for path in target.iterdir()) == ["_retrofill.json", "part-0"]


KEEPING = pytest.mark.parametrize("way", ["exchange and keep", "rename and keep"], indirect=True)


def kept_of(target: Path, run_id: int) -> str:
    """What the run has replaced."""
    folder = find(target, run(run_id)).folder
    assert folder is not None
    return (folder / "part-0").read_text()


@KEEPING
def test_two_publishers_of_an_undo_in_every_interleaving(target: Path) -> None:
    publish(staged(target, 2))
    longest = length(undo(target, 3, 2))
    for order in interleavings((longest, longest + 2), switches=2):
        fresh(target)
        publish(staged(target, 2))
        publication = undo(target, 3, 2)
        publishers = [Publisher(publication), Publisher(again(publication, 1))]
        for who in order:
            publishers[who].go(1)
        for publisher in publishers:
            publisher.finish()
        assert not (publishers[1].gone or publishers[1].refused), order
        assert (content(target), published_by(target), kept_of(target, 3)) == ("run 1", run(3), "run 2"), order
        assert kept_of(target, 2) == "run 1", "it was copied"


@KEEPING
def test_what_others_had_written_comes_back_as_it_was(target: Path) -> None:
    """A directory without a marker, with markers of other outputs inside."""
    target = target.with_name("of others")
    inside = target / "nested" / "_retrofill.json"
    inside.parent.mkdir(parents=True)
    inside.write_text("its own")
    (target / "part-0").write_text("others")
    publish(staged(target, 2))
    publish(undo(target, 3, 2))
    assert (content(target), inside.read_text()) == ("others", "its own")
    # Again, as if the first undo had failed after it was published.
    publish(undo(target, 4, 2))
    assert (content(target), published_by(target)) == ("others", run(4))


@KEEPING
def test_what_was_no_directory_is_not_restored(target: Path) -> None:
    target = target.with_name("current")
    target.symlink_to("day=2013-01-01")
    publish(staged(target, 2))
    with pytest.raises(NotKept, match="was no directory"):
        undo(target, 3, 2)


@KEEPING
def test_a_retry_in_the_same_backfill_is_undone_with_the_run_that_it_replaced(target: Path) -> None:
    publish(staged(target, 2, backfill="b"))
    publish(staged(target, 3, backfill="b"))
    publish(undo(target, 4, 3))
    assert content(target) == "run 1"


@KEEPING
def test_what_a_failed_run_has_replaced_is_kept_though_it_put_nothing_away(target: Path) -> None:
    failed = Publisher(staged(target, 2, backfill="b"))
    failed.until("publish:clean")
    publish(staged(target, 3, backfill="b"))
    publish(undo(target, 4, 3))
    assert content(target) == "run 1"


@KEEPING
def test_what_stragglers_write_later_does_not_hide_what_is_kept(target: Path) -> None:
    publish(staged(target, 2))
    (own_folder(target, run(2)) / "24.writing-1" / "new").mkdir(parents=True)
    publish(Publication(target, run(2), ATTEMPT_ID, 3, KEEP))
    publish(undo(target, 3, 2))
    assert content(target) == "run 1"


@KEEPING
def test_an_undo_leaves_alone_what_was_published_since(target: Path) -> None:
    publish(staged(target, 2))
    publication = undo(target, 4, 2)
    publish(staged(target, 3))
    with pytest.raises(PublishedAgain, match="changed after run 2 had published it"):
        publish(publication)
    assert content(target) == "run 3"


@KEEPING
@pytest.mark.parametrize("change", ["deleted", "rewritten"])
def test_an_undo_leaves_alone_what_somebody_else_changed(target: Path, change: str) -> None:
    publish(staged(target, 2))
    publication = undo(target, 3, 2)
    shutil.rmtree(target)
    if change == "rewritten":
        target.mkdir()
        (target / "part-0").write_text("somebody")
    with pytest.raises(PublishedAgain):
        publish(publication)
    assert target.exists() == (change == "rewritten")


@KEEPING
def test_undone_one_after_the_other_each_restores_what_was_before(target: Path) -> None:
    publish(staged(target, 2))
    publish(undo(target, 3, 2))
    assert content(target) == "run 1"
    publish(undo(target, 4, 1))
    assert [path.name for path in target.iterdir()] == ["_retrofill.json"], "nothing was there before run 1"
    with pytest.raises(NotKept, match=r"what run 9 replaced at .* is no longer kept"):
        undo(target, 10, 9)


@KEEPING
def test_what_was_replaced_long_ago_is_deleted(target: Path) -> None:
    (today,) = (target.parent / AREA / KEPT).iterdir()
    old, recent = (today.with_name(name) for name in ("2013-01-01", "9999-01-01"))
    today.rename(old)
    recent.mkdir()
    publish(staged(target, 2))
    assert sorted(path.name for path in today.parent.iterdir()) == [today.name, recent.name]


def snapshot(target: Path) -> dict[str, str]:
    """Everything that a reader of the table sees."""
    sweep(target.parent / AREA)
    visible = (path for path in target.parent.rglob("*") if path.is_file() and AREA not in path.parts)
    return {str(path): path.read_text() for path in visible}


def of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, runs are those of another installation, which counts from 1 again."""
    monkeypatch.setattr(sys.modules[__name__], "INSTALLATION", "there")


@KEEPING
def test_an_undo_restores_what_the_run_of_its_own_installation_replaced(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(staged(target, 2, backfill="b", text="of the first installation"))
    of_another(monkeypatch)
    publish(staged(target, 2, backfill="b", text="of the second one"))
    publish(undo(target, 3, 2))
    assert content(target) == "of the first installation"
    assert kept_of(target, 3) == "of the second one"


def test_output_with_the_number_of_a_run_of_another_installation_is_not_its_own(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stop in range(length(staged(target, 2))):
        shutil.rmtree(target.parent)
        monkeypatch.setattr(sys.modules[__name__], "INSTALLATION", "here")
        publish(staged(target, 1, text="old"))
        of_another(monkeypatch)
        first = Publisher(staged(target, 1, text="new"))
        first.go(stop)
        publish(Publication(target, run(1), ATTEMPT_ID, 1, KEEP))
        assert content(target) == "new", stop


def of_interval(target: Path, run_id: int, day: int) -> Publisher:
    """An attempt that has written the day's output for a directory, and is about to seal and to publish it."""
    folder = own_folder(target, run(run_id)) / f"{ATTEMPT_ID + run_id}.writing-1"
    (folder / "new").mkdir(parents=True)
    (folder / "new" / "part-0").write_text(f"run {run_id}")
    interval = {
        "interval_start": f"2013-01-0{day}T00:00:00+00:00",
        "interval_end": f"2013-01-0{day + 1}T00:00:00+00:00",
    }
    about = {"run": run(run_id), "attempt_id": ATTEMPT_ID + run_id, "pipeline": "p", **interval}
    put_marker(folder, about)
    publication = Publication(target, run(run_id), ATTEMPT_ID + run_id, 0, KEEP)
    return Publisher(publication, sealing([Written(folder, target, run(run_id), about)], ATTEMPT_ID + run_id))


def contents(top: Path) -> dict[str, str]:
    """What a reader of all directories sees."""
    files = (path for path in top.rglob("part-0") if AREA not in path.parts)
    return {str(path.parent.relative_to(top)): path.read_text() for path in files}


# Each pair of directories in both orders, so that either run may have either.
@interleaved
@pytest.mark.parametrize(
    "names",
    [("t", "t"), ("t", "t/x/day=2"), ("t/x/day=2", "t")],
    ids=["the same", "the second inside", "the first inside"],
)
def test_two_intervals_of_one_directory_in_every_interleaving(target: Path, names: tuple[str, str]) -> None:
    top, runs = target.parent, (2, 3)
    for order in interleavings((10, 10), switches=2):
        shutil.rmtree(top)
        publishers = [of_interval(top / names[n], runs[n], day=n + 1) for n in (0, 1)]
        for who in order:
            publishers[who].go(1)
        for publisher in publishers:
            publisher.finish()
        assert not any(publisher.gone for publisher in publishers), order
        (published,) = (n for n in (0, 1) if not publishers[n].refused)
        assert contents(top) == {names[published]: f"run {runs[published]}"}, order
