"""The decision after each try, and when the runner checks again."""

from datetime import UTC, datetime, timedelta

import pytest

from callback_runner.decide import (
    GiveUp,
    Impossible,
    Raised,
    Returned,
    Succeed,
    TryAgain,
    after_try,
    backoff,
    max_per_pipeline,
    seconds_to_next,
    take_turns,
    unknown,
    why_not_replayed,
)
from retrofill_core.domain.callback import MACHINE, CallbackState
from retrofill_core.domain.deadline import LOCKED_SECONDS, MARGIN_SECONDS, POLL_SECONDS
from retrofill_core.store.callbacks import Due

NOW = datetime(2024, 3, 1, 12, tzinfo=UTC)


def test_a_return_is_the_end_whatever_the_number_of_tries():
    assert after_try(Returned(), 9, 5) == Succeed()


@pytest.mark.parametrize("attempts", [1, 2, 3, 4])
def test_a_failed_try_is_repeated_while_tries_are_left(attempts):
    decision = after_try(Raised("boom"), attempts, 5)
    assert isinstance(decision, TryAgain)
    assert decision.error == "boom"
    assert decision.after_seconds > 0


@pytest.mark.parametrize("at_once", [False, True])
def test_the_last_try_is_the_last(at_once):
    assert after_try(Raised("boom", at_once=at_once), 5, 5) == GiveUp("boom")


def test_a_try_that_ended_for_a_reason_of_the_runner_is_repeated_at_once():
    assert after_try(Raised("died", at_once=True), 1, 5) == TryAgain("died", 0.0)


def test_an_unknown_name_is_not_tried_again_and_the_error_names_those_there_are():
    outcome = unknown("'page' is not there", "SETTING", ["mail", "chat"])
    assert isinstance(outcome, Impossible)
    assert outcome.error == "'page' is not there (SETTING); names there: chat, mail"
    assert after_try(outcome, 1, 5) == GiveUp(outcome.error)


@pytest.mark.parametrize(("attempts", "least"), [(1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0)])
def test_the_backoff_doubles_with_jitter(attempts, least):
    waits = [backoff(attempts) for _ in range(50)]
    assert all(least <= wait <= least + 0.5 for wait in waits)
    assert len(set(waits)) > 1


def test_the_backoff_has_an_end():
    assert backoff(1000) == 60


@pytest.mark.parametrize("at_most_once", [False, True])
def test_what_is_certain_is_repeated_though_it_is_called_once_at_most(at_most_once):
    assert isinstance(after_try(Raised("boom"), 1, 5, at_most_once=at_most_once), TryAgain)


def test_what_may_have_been_done_is_repeated_only_where_that_does_no_harm():
    died = Raised("died", at_once=True, uncertain=True)
    assert after_try(died, 1, 5) == TryAgain("died", 0.0)
    assert after_try(died, 1, 5, at_most_once=True) == GiveUp("died", uncertain=True)
    assert after_try(died, 5, 5) == GiveUp("died", uncertain=True)


@pytest.mark.parametrize("attempts", [5, 6, 500])
@pytest.mark.parametrize("uncertain", [False, True])
def test_a_receiver_that_is_away_is_waited_for_but_not_one_that_refuses(attempts: int, uncertain: bool) -> None:
    away = Raised("503", uncertain=uncertain)
    assert isinstance(after_try(away, attempts, 5, patient=True), TryAgain)
    assert after_try(away, attempts, 5) == GiveUp("503", uncertain)
    assert after_try(Raised("404", refused=True), attempts, 5, patient=True) == GiveUp("404")
    # What may have been done is not done again.
    assert isinstance(after_try(away, attempts, 5, patient=True, at_most_once=True), GiveUp) == uncertain


def test_who_is_called_may_ask_for_more_time_but_not_for_less():
    later = after_try(Raised("busy", after_seconds=600.0), 1, 5)
    assert later == TryAgain("busy", 600.0)
    soon = after_try(Raised("busy", after_seconds=0.001), 3, 5)
    assert isinstance(soon, TryAgain)
    assert soon.after_seconds >= 2.0


def test_gone_is_the_end():
    assert after_try(Impossible("410", gone="5d"), 1, 5) == GiveUp("410", gone="5d")


@pytest.mark.parametrize(
    ("next_try", "next_lapse", "expected"),
    [
        (None, None, POLL_SECONDS),
        (2.0, None, 2.0 + MARGIN_SECONDS),
        (2.0, 1.0, 1.0 + MARGIN_SECONDS),
        (-1.0, 5.0, LOCKED_SECONDS),
        (None, 5.0, 5.0 + MARGIN_SECONDS),
        (3600.0, None, POLL_SECONDS),
    ],
)
def test_the_next_look_is_at_the_first_moment(next_try, next_lapse, expected):
    def moment(seconds):
        return None if seconds is None else NOW + timedelta(seconds=seconds)

    assert seconds_to_next(moment(next_try), moment(next_lapse), NOW) == pytest.approx(expected)


def waiting(*pipelines):
    """Callbacks 1, 2, … of these pipelines, longest-waiting first."""
    return [Due(n, pipeline, NOW + timedelta(seconds=n)) for n, pipeline in enumerate(pipelines, 1)]


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (2, 1), (3, 1), (4, 2), (8, 4)])
def test_one_pipeline_gets_half_of_the_slots(slots, most):
    assert max_per_pipeline(slots) == most


def test_pipelines_take_turns_and_the_longest_waiting_is_first():
    assert take_turns(waiting("a", "a", "a", "b", "c"), {}, {}, 5, 4) == [1, 4, 5, 2, 3]


def test_a_full_pipeline_leaves_slots_free():
    assert take_turns(waiting("a", "a", "a", "a"), {"a": 1}, {}, 7, 4) == [1, 2, 3]
    assert take_turns(waiting("a", "b"), {"a": 4}, {}, 4, 4) == [2]


def test_the_pipeline_with_fewer_calls_is_first():
    assert take_turns(waiting("a", "a", "b", "b"), {"a": 2}, {}, 3, 4) == [3, 4, 1]


def test_with_one_slot_a_long_backlog_does_not_starve_others():
    backlog = waiting(*["a"] * 10, "b", "c")
    served: dict[str, int] = {}
    order: list[str] = []
    for claim in range(1, 7):
        (id,) = take_turns(backlog, {}, served, 1, 1)
        (one,) = [each for each in backlog if each.deadline_id == id]
        backlog.remove(one)
        served[one.pipeline] = claim
        order.append(one.pipeline)
    assert order == ["a", "b", "c", "a", "a", "a"]


def test_every_refused_replay_says_why():
    reasons = {why_not_replayed(state, None) for state in (None, *CallbackState)}
    assert len(reasons) == 6
    assert "newer callback 9" in why_not_replayed(CallbackState.FAILED, 9)
    assert not MACHINE.allows(CallbackState.SUCCEEDED, CallbackState.PENDING)
