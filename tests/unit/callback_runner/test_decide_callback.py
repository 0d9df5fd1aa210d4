"""What follows from a try, and when the runner looks again."""

from datetime import UTC, datetime, timedelta

import pytest

from callback_runner.decide import (
    AFTER_SECONDS,
    AGAIN_SECONDS,
    POLL_SECONDS,
    GiveUp,
    Impossible,
    Raised,
    Returned,
    Succeed,
    TryAgain,
    after_try,
    backoff,
    seconds_to_next,
    unknown,
)

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
    outcome = unknown("page", ["mail", "chat"])
    assert isinstance(outcome, Impossible)
    assert "'page'" in outcome.error
    assert "chat, mail" in outcome.error
    assert after_try(outcome, 1, 5) == GiveUp(outcome.error)


@pytest.mark.parametrize(("attempts", "least"), [(1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0)])
def test_the_backoff_doubles_with_jitter(attempts, least):
    waits = [backoff(attempts) for _ in range(50)]
    assert all(least <= wait <= least + 0.5 for wait in waits)
    assert len(set(waits)) > 1


def test_the_backoff_has_an_end():
    assert backoff(1000) == 60


@pytest.mark.parametrize(
    ("next_try", "next_lapse", "free", "expected"),
    [
        (None, None, 4, POLL_SECONDS),
        (2.0, None, 4, 2.0 + AFTER_SECONDS),
        (2.0, 1.0, 4, 1.0 + AFTER_SECONDS),
        (-1.0, 5.0, 4, AGAIN_SECONDS),
        (-1.0, 5.0, 0, 5.0 + AFTER_SECONDS),
        (-1.0, None, 0, POLL_SECONDS),
        (3600.0, None, 4, POLL_SECONDS),
    ],
)
def test_without_a_free_slot_only_leases_count(next_try, next_lapse, free, expected):
    def moment(seconds):
        return None if seconds is None else NOW + timedelta(seconds=seconds)

    assert seconds_to_next(moment(next_try), moment(next_lapse), NOW, free=free) == pytest.approx(expected)
