"""Ways of breaking a good history, each with the promise under which the oracle reports it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from datetime import date
from typing import Any

from psycopg.types.range import Range
from tests.chaos.history import History, Wish
from tests.chaos.promises.attempts import FORGED
from tests.chaos.work import content
from tests.support.events import Event
from tests.unit.chaos.good_history import (
    DAYS,
    SECOND,
    at,
    backfill_row,
    callback_row,
    deadline_row,
    event,
    letter,
    note,
    rejection,
    run_event,
    run_row,
)
from tests.unit.chaos.good_history import (
    change as changed,
)

from retrofill_core.contract.topics import Topic

Bad = Callable[[History], Any]


def put(history: History, topic: Topic, *events: Event) -> None:
    """Append events."""
    history.events.setdefault(str(topic), []).extend(events)


def change(history: History, table: str, row: int, **values: Any) -> None:
    """Change a value in a row."""
    history.tables[table][row].update(values)


def _another_backfill(history: History) -> None:
    history.tables["backfill"].append({**backfill_row("c", "succeeded"), "requested_at": at(5)})


def _wished(history: History, **more: Any) -> None:
    history.wishes["b"] = dataclasses.replace(history.wishes["b"], **more)


def _paused_too_early(history: History) -> None:
    _wished(history, budgets=(1,))
    put(history, Topic.BACKFILL_EVENTS, event("b", "BackfillPaused", cause="budget"))
    history.changes.insert(0, changed("backfill", "b", "running", "paused", 0))


def _replaced_by(day: int, queued: float) -> Bad:
    """The failed run was replaced by one of this day."""

    def replaced(history: History) -> None:
        change(history, "run", 0, superseded_by=3)
        new = run_row(3, DAYS[day], "failed", attempt=0, queued_at=at(queued), started_at=None, finished_at=at(9))
        history.tables["run"].append({**new, "position": 0, "attempt_id": None})

    return replaced


def _swap(history: History, topic: Topic, first: int, second: int) -> None:
    events = history.events[str(topic)]
    events[first], events[second] = events[second], events[first]


def _tried_again_in_a_larger_range(history: History) -> None:
    history.of(Topic.RUN_EVENTS)[3].body.update(type="RunSplit", size=1)
    change(history, "attempt", 1, mode="range", runs=2)
    change(history, "attempt", 2, mode="range", runs=2)


def _planned_twice(history: History) -> None:
    again = {**backfill_row("again", "succeeded"), "requested_at": at(20), "ended_at": at(30)}
    history.tables["backfill"].append(again)
    history.wishes["again"] = Wish("again", "p", date(2001, 1, 1), date(2001, 1, 2))
    row = {"backfill_id": "again", "interval_start": DAYS[1], "run_id": 9, "reason": None}
    history.tables["backfill_interval"].append(row)


def _cancelled_by_itself(history: History) -> None:
    history.tables["run_cancel"] = [{"backfill_id": "b", "run_id": 1}]
    change(history, "run", 0, state="cancelled")
    change(history, "backfill", 0, state="succeeded")


def _progress(sequence: int, done: int) -> Event:
    return event("b", "BackfillProgress", sequence=sequence, runs_by_state={"succeeded": done})


def _two_of_one_note(history: History) -> None:
    history.notes[:] = [note(1, 1, "2001-01-01", 103), note(2, 1, "2001-01-02", 103)]


def _the(history: History, entity: str, id: int, to: str, number: int = 0) -> dict[str, Any]:
    """A recorded change to a state, the ``number``-th one."""
    found = [each for each in history.changes if (each["entity"], each["id"], each["to"]) == (entity, str(id), to)]
    return found[number]


def _unseen(history: History, *lost: dict[str, Any]) -> None:
    """Remove recorded changes."""
    history.changes[:] = [each for each in history.changes if not any(each is one for one in lost)]


def _the_second_of_a_batch_begins_first(history: History) -> None:
    index = history.changes.index(_the(history, "run", 1, "running"))
    history.changes.insert(index, changed("run", 2, "starting", "running", 0.7, 1, 11))


def _both_of_a_batch_at_once(history: History) -> None:
    index = history.changes.index(_the(history, "run", 1, "failed"))
    history.changes.insert(index, changed("run", 2, "starting", "running", 1.5, 1, 11))


def _exchange_positions(history: History) -> None:
    change(history, "run", 0, position=1)
    change(history, "run", 1, position=0)


def _second_first(history: History) -> None:
    first = [each for each in history.changes if each["entity"] == "run" and each["id"] == "1"]
    history.changes[:] = [each for each in history.changes if each not in first] + first


def _other_bytes(history: History) -> None:
    history.events["dead-letters"] = [letter("run-reports", 3, "poison-1", b"[")]


def _twice_at_most_once(history: History) -> None:
    history.alerts["p"][0] = {**history.alerts["p"][0], "at_most_once": True}
    change(history, "callback", 0, attempts=2)
    history.calls.append({**history.calls[0]})


def _one_key_for_two(history: History) -> None:
    history.calls.append({**history.calls[0], "deadline": 1})


def rejected(command: str, seconds: float, place: int, **body: Any) -> Bad:
    """A user's command was rejected at this moment: the answer comes at this place of the events."""

    def spoil(history: History) -> None:
        sent = event("b", command, **body)
        answer = rejection(sent)
        put(history, Topic.BACKFILL_REQUESTS, sent)
        history.events["backfill-events"].insert(place, answer)
        row = {"backfill_id": "b", "ce_id": sent.headers["ce_id"], "decided_at": at(seconds)}
        history.tables["backfill_command"].append(row)

    return spoil


def _after_a_pause(spoil: Bad) -> Bad:
    def paused(history: History) -> None:
        spoil(history)
        history.events["backfill-events"].insert(1, event("b", "BackfillPaused"))

    return paused


def _accepted_cancel(history: History) -> None:
    history.cancelled.add("b")
    history.events["backfill-events"].insert(1, event("b", "BackfillCancelling", in_reply_to="c"))


FIRST_DAY, SECOND_DAY = {"intervals": ["2001-01-01"]}, {"intervals": ["2001-01-02"]}
# Rightly: too early, too late or for nothing.
DUE: list[tuple[str, Bad]] = [
    ("before its request", rejected("BackfillPauseRequested", 0, 0)),
    ("a cancel after the end", rejected("BackfillCancelRequested", 11, 2)),
    ("a resume after the end", rejected("BackfillResumeRequested", 11, 2)),
    ("another budget while it runs", rejected("BackfillResumeRequested", 5, 1, budget={})),
    ("a run that has ended", rejected("RunCancelRequested", 5, 1, **FIRST_DAY)),
    ("one of two runs has ended", rejected("RunCancelRequested", 5, 1, intervals=["2001-01-02", "2001-01-01"])),
    ("a day without a run", rejected("RunCancelRequested", 5, 1, intervals=["2001-01-03"])),
    ("no run has failed", rejected("RunRetryRequested", 1.5, 1, all_failed=True)),
    # The failure is noted at 2, when it may not have been committed yet: that is sure at 2.5.
    ("no run has failed for sure", rejected("RunRetryRequested", 2.2, 1, all_failed=True)),
]
T = Topic
BAD: list[tuple[str, str, Bad]] = [
    ("every_request_is_answered", "no answer", lambda h: h.events["backfill-events"].__delitem__(slice(0, 3, 2))),
    ("every_request_is_answered", "two outcomes", lambda h: put(h, T.BACKFILL_EVENTS, event("b", "BackfillRejected"))),
    ("every_request_is_answered", "planned and no row", lambda h: h.tables["backfill"].clear()),
    ("every_backfill_ends_once", "two ends", lambda h: put(h, T.BACKFILL_EVENTS, event("b", "BackfillFailed"))),
    ("progress_is_announced_once", "a gap", lambda h: put(h, T.BACKFILL_EVENTS, _progress(2, 1))),
    ("progress_is_announced_once", "nothing new", lambda h: put(h, T.BACKFILL_EVENTS, _progress(1, 1), _progress(2, 1))),
    ("every_backfill_ends_once", "no end", lambda h: h.events["backfill-events"].pop(1)),
    ("every_backfill_ends_once", "another end", lambda h: change(h, "backfill", 0, state="succeeded")),
    ("every_interval_has_its_outcome", "a day is missing", lambda h: h.tables["backfill_interval"].pop()),
    ("every_interval_has_its_outcome", "a run is missing", lambda h: h.tables["run"].pop()),
    ("every_interval_has_its_outcome", "a failing day succeeded", lambda h: change(h, "run", 0, state="succeeded")),
    ("every_interval_has_its_outcome", "cancelled by nobody", lambda h: change(h, "run", 1, state="cancelled")),
    ("every_interval_has_its_outcome", "succeeded in spite of a cancel", _cancelled_by_itself),
    ("every_interval_has_its_outcome", "the wrong end", lambda h: change(h, "backfill", 0, state="succeeded")),
    ("every_interval_has_its_outcome", "nobody asked", lambda h: h.wishes.clear()),
    ("every_interval_has_its_outcome", "a cancel without effect", _accepted_cancel),
    ("rejections_are_due", "a cancel while it runs", rejected("BackfillCancelRequested", 5, 1)),
    ("rejections_are_due", "a pause while it runs", rejected("BackfillPauseRequested", 5, 1)),
    ("rejections_are_due", "a resume while it runs", rejected("BackfillResumeRequested", 5, 1)),
    ("rejections_are_due", "a resume while it is paused", _after_a_pause(rejected("BackfillResumeRequested", 5, 1))),
    ("rejections_are_due", "a run at work", rejected("RunCancelRequested", 7, 1, **SECOND_DAY)),
    ("rejections_are_due", "a run that fails later", rejected("RunCancelRequested", 1.5, 1, **FIRST_DAY)),
    ("rejections_are_due", "a run has failed", rejected("RunRetryRequested", 3, 1, all_failed=True)),
    ("rejections_are_due", "nobody sent it", lambda h: h.events["backfill-requests"].clear()),
    ("rejections_are_due", "it is not recorded", lambda h: h.tables["backfill_command"].clear()),
    ("retries_replace_failed_runs", "by nothing", lambda h: change(h, "run", 0, superseded_by=9)),
    ("retries_replace_failed_runs", "what succeeded", lambda h: change(h, "run", 1, superseded_by=1)),
    ("retries_replace_failed_runs", "by another day", _replaced_by(1, 5)),
    ("retries_replace_failed_runs", "after the end", _replaced_by(0, 11)),
    ("one_active_backfill_of_an_interval", "together", _another_backfill),
    ("limits_hold_in_the_rows", "of a backfill", lambda h: h.sampled.update({"b": 2})),
    ("limits_hold_in_the_rows", "of a pipeline", lambda h: h.sampled.update({"pipeline:p": 2})),
    ("one_suspect_at_a_time", "two of one server", lambda h: change(h, "attempt", 1, suspect_server="sc://spark", ended_at=at(7))),
    ("one_suspect_at_a_time", "a batch", lambda h: change(h, "attempt", 2, runs=2)),
    ("limits_hold_in_the_events", "two live", lambda h: _swap(h, T.RUN_EVENTS, 1, 2)),
    ("limits_hold_at_work", "two at work", lambda h: h.notes.append(note(1, 1, "2001-01-01", 103.5))),
    ("one_attempt_of_an_interval_at_a_time", "a zombie at work", lambda h: h.notes.append(note(2, 1, "2001-01-02", 107))),
    ("every_run_ends_once", "ends twice", lambda h: put(h, T.RUN_EVENTS, run_event("RunSucceeded", 2, 2, 9))),
    ("every_run_ends_once", "no end", lambda h: h.events["run-events"].pop()),
    ("every_run_ends_once", "of another attempt", lambda h: change(h, "run", 1, attempt=3)),
    ("attempts_follow_one_another", "an old attempt's event", lambda h: put(h, T.RUN_EVENTS, run_event("RunAttemptLost", 2, 1, 9))),
    ("attempts_follow_one_another", "started twice", lambda h: put(
        h, T.RUN_EVENTS, run_event("RunStarted", 2, 3, 9, attempt_id=14))),
    ("attempts_follow_one_another", "begun more often than its row says", lambda h: change(h, "run", 1, attempt=1)),
    ("ranges_are_split", "a batch", lambda h: h.of(T.RUN_EVENTS)[3].body.update(type="RunSplit", size=1)),
    ("ranges_are_split", "larger again", _tried_again_in_a_larger_range),
    ("time_limits_hold", "too early", lambda h: h.of(T.RUN_EVENTS)[1].body.update(error={"type": "RunTimedOut"})),
    ("time_limits_hold", "while it waits", lambda h: put(
        h, T.RUN_EVENTS, run_event("RunFailed", 2, 2, 99, error={"type": "RunTimedOut"}))),
    ("time_limits_hold", "far too late", lambda h: h.of(T.RUN_EVENTS)[5].body.update(at=at(999).isoformat())),
    ("attempts_are_in_their_pools", "another pool", lambda h: change(h, "host", 0, pool="gpu")),
    ("only_what_hangs_times_out", "it does not hang", lambda h: change(h, "run", 0, error={"type": "RunTimedOut"})),
    ("manners_end_as_declared", "another error", lambda h: _wished(h, manners={"2001-01-01": "_exit 3"})),
    ("manners_end_as_declared", "it succeeded", lambda h: _wished(h, manners={"2001-01-02": "recursion"})),
    ("manners_lose_no_driver", "lost", lambda h: _wished(h, manners={"2001-01-02": "sys.exit"})),
    ("only_what_hangs_times_out", "it hangs", lambda h: _wished(h, hanging=frozenset({"2001-01-01"}))),
    ("budgets_pause", "it never paused", lambda h: _wished(h, budgets=(1,))),
    ("budgets_pause", "too early", _paused_too_early),
    ("each_execution_has_its_number", "two processes", lambda h: h.notes.append(note(2, 1, "2001-01-02", 105, process=2))),
    ("ends_were_reported", "a success that nobody reported", lambda h: h.events["run-reports"].clear()),
    ("ends_were_reported", "an old attempt's report", lambda h: change(h, "run", 0, error={"message": FORGED})),
    ("ends_were_reported", "a loss of an old attempt", lambda h: change(h, "attempt", 0, error={"message": FORGED})),
    ("ends_were_reported", "in another attempt", lambda h: change(h, "run", 1, attempt_id=12)),
    ("ends_were_reported", "accepted and not staged", lambda h: change(h, "run", 1, accepted_attempt=12)),
    ("every_event_once", "doubled", lambda h: put(h, T.RUN_EVENTS, copy.deepcopy(h.of(T.RUN_EVENTS)[0]))),
    ("events_are_in_order", "goes back", lambda h: _swap(h, T.RUN_EVENTS, 0, 3)),
    ("a_backfill_is_told_in_order", "an end before the plan", lambda h: _swap(h, T.BACKFILL_EVENTS, 0, 1)),
    ("a_backfill_is_told_in_order", "on after its end", lambda h: put(h, T.BACKFILL_EVENTS, event("b", "BackfillPaused"))),
    ("nothing_else_is_put_aside", "a dead letter", lambda h: put(h, T.DEAD_LETTERS, event("b", "RunReported"))),
    ("each_miss_is_told_once", "told twice", lambda h: put(h, T.DEADLINE_MISSED, event(2, "DeadlineMissed"))),
    ("each_miss_is_told_once", "not told", lambda h: h.events["deadline-missed"].clear()),
    ("each_miss_is_told_once", "told and not missed", lambda h: put(h, T.DEADLINE_MISSED, event(1, "DeadlineMissed"))),
    ("each_deadline_is_judged_right", "missed though done", lambda h: change(h, "run", 1, finished_at=at(4))),
    ("each_deadline_is_judged_right", "met though late", lambda h: change(h, "deadline", 1, state="met")),
    ("each_deadline_is_judged_right", "never judged", lambda h: change(h, "deadline", 1, state="armed")),
    ("each_run_has_its_deadlines", "none", lambda h: h.tables["deadline"].pop(0)),
    ("each_run_has_its_deadlines", "two", lambda h: h.tables["deadline"].append(deadline_row(3, 1, "void", at(5)))),
    ("each_miss_has_its_callback", "none", lambda h: h.tables["callback"].clear()),
    ("each_miss_has_its_callback", "one too many", lambda h: h.tables["callback"].append(callback_row(1))),
    ("each_fact_has_its_callbacks", "no run", lambda h: h.tables["callback_run"].clear()),
    ("each_fact_has_its_callbacks", "a place too many", lambda h: h.tables["callback_run"].append(
        {"run_id": 1, "place": 1, "callback_id": 3})),
    ("each_fact_has_its_callbacks", "of a run that succeeded", lambda h: h.tables["callback_run"].append(
        {"run_id": 2, "place": 0, "callback_id": 3})),
    ("each_fact_has_its_callbacks", "no end", lambda h: h.tables["callback"].pop(2)),
    ("each_fact_has_its_callbacks", "another end", lambda h: change(h, "callback", 2, occasion="backfill_succeeded")),
    ("each_failure_is_told", "two events", lambda h: put(
        h, T.CALLBACK_EVENTS, event(3, "RunsFailed", callback_id=3, count=1, failed=[{"run_id": 1}]))),
    ("each_failure_is_told", "too few", lambda h: h.of(T.CALLBACK_EVENTS)[1].body.update(count=0)),
    ("each_failure_is_told", "others", lambda h: h.of(T.CALLBACK_EVENTS)[1].body.update(failed=[{"run_id": 2}])),
    ("each_callback_ends_once", "open", lambda h: change(h, "callback", 0, state="running")),
    ("each_callback_ends_once", "told twice", lambda h: put(h, T.CALLBACK_EVENTS, event(2, "CallbackSucceeded"))),
    ("each_receiver_is_called_in_order", "the end first", lambda h: h.calls[2].update(at=at(0.5))),
    ("each_callback_ends_once", "dropped, and nothing newer", lambda h: change(h, "callback", 2, state="dropped")),
    ("each_callback_is_called", "never", lambda h: h.calls.clear()),
    ("each_callback_is_called", "twice in one attempt", lambda h: h.calls.append({"deadline": 2, "key": "k", "at": at(6.6)})),
    ("each_callback_has_one_key", "under two keys", lambda h: h.calls.append({"deadline": 2, "key": "other", "at": at(6.6)})),
    ("each_callback_is_called", "for nothing", lambda h: h.calls.append({"deadline": 1, "key": "k", "at": at(6.6)})),
    ("everything_comes_to_its_end", "stuck", lambda h: h.undrained.append("b")),
    ("nothing_is_held", "a transaction", lambda h: h.held.append({"state": "idle in transaction"})),
    ("no_row_is_claimed", "a slot", lambda h: change(h, "attempt", 1, slot=1)),
    ("no_row_is_claimed", "a live attempt", lambda h: change(h, "attempt", 1, state="running", outcome=None)),
    ("no_row_is_claimed", "no outcome", lambda h: change(h, "attempt", 1, outcome=None)),
    ("no_row_is_claimed", "a seat", lambda h: change(h, "seat", 0, attempt_id=13)),
    ("no_row_is_claimed", "a live run", lambda h: change(h, "run", 1, state="running")),
    ("no_row_is_claimed", "an active backfill", lambda h: change(h, "backfill", 0, state="running")),
    ("no_row_is_claimed", "a callback's claim", lambda h: change(h, "callback", 0, token="t")),
    ("no_row_is_claimed", "an armed deadline", lambda h: change(h, "deadline", 0, state="armed")),
    ("everything_is_published", "an event waits", lambda h: h.tables["run_starter_outbox"].append({"id": 1})),
    ("everything_is_published", "a batch is open", lambda h: change(h, "run_starter_relay", 0, batch_ids=[1])),
    ("everything_is_read", "behind", lambda h: change(h, "run_starter_shard_offset", 0, next_offset=8)),
    ("the_output_is_right", "of the old attempt", lambda h: h.outputs.update({SECOND: content(*SECOND, "b", 12)})),
    ("the_output_is_right", "not there", lambda h: h.outputs.clear()),
    ("the_output_is_of_the_accepted_attempt", "another", lambda h: h.markers[SECOND].update(attempt_id=12)),
    ("the_output_is_of_the_accepted_attempt", "no marker", lambda h: h.markers.clear()),
    ("no_output_without_work", "of nobody", lambda h: h.outputs.update({("p", "2001-01-03"): "{}"})),
    ("skips_are_due", "for nothing", lambda h: change(h, "backfill_interval", 1, run_id=None, reason="already exists")),
    ("skips_are_due", "run again for nothing", _planned_twice),
    ("refusals_are_due", "by one that has ended", lambda h: change(h, "backfill_request", 1, decided_at=at(60))),
    ("refusals_are_due", "by one of other days", lambda h: change(h, "backfill", 0, covers=Range(DAYS[0], DAYS[1]))),
    ("refusals_are_due", "by nobody", lambda h: h.of(T.BACKFILL_EVENTS)[3].body.update(conflicting_backfill_id="x")),
    ("refusals_are_due", "there was something to run", lambda h: h.of(T.BACKFILL_EVENTS)[3].body.update(reason="nothing_to_run")),
    ("refusals_are_due", "for no reason of ours", lambda h: h.of(T.BACKFILL_EVENTS)[3].body.update(reason="bad_range")),
    ("limits_hold_at_work", "two of one note", _two_of_one_note),
    ("one_attempt_of_an_interval_at_a_time", "a zombie of one note", lambda h: h.notes.append(note(3, 1, "2001-01-02", 107))),
    ("every_change_is_an_edge", "back from the end", lambda h: h.changes.append(changed("run", 1, "failed", "queued", 11, 1))),
    ("every_change_is_an_edge", "a strange beginning", lambda h: h.changes[0].update({"to": "paused"})),
    ("only_the_live_attempt_changes_anything", "an old one's task", lambda h: h.changes.append(
        changed("task_run", 2, "running", "failed", 9, 1))),
    ("only_the_live_attempt_changes_anything", "an attempt is left out", lambda h: _the(h, "run", 2, "running", 1).update(
        attempt=3)),
    ("limits_hold_at_every_commit", "two live", lambda h: h.changes.insert(5, changed("attempt", 12, None, "starting", 0.6))),
    ("live_runs_are_part_of_live_attempts", "an end before its run's", lambda h: _unseen(h, _the(h, "run", 2, "queued"))),
    ("live_runs_are_part_of_live_attempts", "no attempt", lambda h: _unseen(h, _the(h, "attempt", 11, "starting"),
        _the(h, "attempt", 11, "running"))),
    ("live_runs_are_part_of_live_attempts", "not its run", lambda h: change(h, "attempt", 0, position=1)),
    ("batches_are_adjacent", "too large", lambda h: h.batches.clear()),
    ("batches_are_adjacent", "a gap", lambda h: change(h, "run", 1, interval_start=DAYS[2])),
    ("batches_are_adjacent", "no such run", lambda h: change(h, "attempt", 2, position=2)),
    ("batches_run_in_order", "the second first", _the_second_of_a_batch_begins_first),
    ("batches_run_in_order", "both at once", _both_of_a_batch_at_once),
    ("batches_run_in_order", "half of a range", lambda h: change(h, "attempt", 0, mode="range")),
    ("batches_run_in_order", "one was not given", lambda h: change(h, "attempt", 0, runs=3)),
    ("positions_follow_the_dates", "exchanged", _exchange_positions),
    ("runs_start_in_order", "the second day first", _second_first),
    ("each_attempt_has_its_tasks", "of the lost one none", lambda h: h.tables["task_run"].pop(1)),
    ("each_attempt_has_its_tasks", "of another end", lambda h: change(h, "task_run", 2, state="failed")),
    ("each_attempt_has_its_tasks", "open for ever", lambda h: change(h, "task_run", 1, finished_at=None)),
    ("topics_hold_what_was_committed", "lost", lambda h: h.events["deadline-missed"].clear()),
    ("topics_hold_what_was_committed", "doubled", lambda h: h.of(T.RUN_EVENTS).append(h.of(T.RUN_EVENTS)[0])),
    ("topics_hold_what_was_committed", "rolled back", lambda h: h.committed.pop(0)),
    ("topics_are_in_commit_order", "exchanged", lambda h: _swap(h, T.BACKFILL_EVENTS, 1, 2)),
    ("every_poison_has_its_dead_letter", "none", lambda h: h.events["dead-letters"].clear()),
    ("every_poison_has_its_dead_letter", "two", lambda h: put(h, T.DEAD_LETTERS, letter("run-reports", 3, "poison-1", b"{"))),
    ("every_poison_has_its_dead_letter", "other bytes", _other_bytes),
    ("every_poison_has_its_dead_letter", "not on the topic", lambda h: h.poisoned.add("poison-2")),
    ("nothing_else_is_put_aside", "no letter of a failed callback", lambda h: change(h, "callback", 0, state="failed")),
    ("moments_are_the_databases", "another clock", lambda h: change(h, "run", 1, finished_at=at(8))),
    ("moments_are_the_databases", "never seen", lambda h: change(h, "run", 0, started_at=None)),
    ("each_deadline_is_due_when_its_alert_says", "later", lambda h: change(h, "deadline", 1, due_at=at(5.5))),
    ("each_deadline_is_due_when_its_alert_says", "of no alert", lambda h: h.alerts.clear()),
    ("each_deadline_is_judged_right", "missed too early", lambda h: _the(h, "deadline", 2, "missed").update(began=at(4), at=at(4))),
    ("each_deadline_is_judged_right", "let off", lambda h: change(
        h, "deadline", 1, state="void", reason="already past when it was armed")),
    ("each_run_has_its_deadlines", "a backfill's", lambda h: h.alerts["p"].append(
        {"name": "all", "reference": "BACKFILL_REQUESTED_AT", "interval_seconds": 1})),
    ("each_callback_is_called", "twice at most once", _twice_at_most_once),
    ("each_callback_is_called", "too often", lambda h: setattr(h, "most_tries", 0)),
    ("each_callback_has_one_key", "of another", _one_key_for_two),
    ("no_call_comes_early", "before its moment", lambda h: h.calls[0].update(at=at(4.9))),
    ("no_call_comes_early", "before the miss", lambda h: h.calls[0].update(at=at(5.5))),
    ("no_call_comes_early", "before the run failed", lambda h: h.calls[1].update(at=at(1.9))),
    ("no_call_comes_early", "before the backfill ended", lambda h: h.calls[2].update(at=at(9.9))),
    ("no_call_comes_early", "after its success", lambda h: h.calls[0].update(at=at(8))),
]  # fmt: skip
