"""Plausible simplifications of the services' code that each break an invariant.

Random schedules must find all of them but those in ``DIRECTED``, which a test of its own finds each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.simulation.mutations import (
    budgets,
    bus,
    cancelling,
    hosting,
    limiting,
    planning,
    publishing,
    retrying,
    reviewing,
    starting,
    undoing,
    watching,
)
from tests.simulation.mutations.patch import Patch, Patches

Mutation = Callable[[Patch], None]

# By the invariant of DESIGN.md, section 4, that they break.
INVARIANTS: dict[int, tuple[str, tuple[Mutation, ...]]] = {
    1: (
        "atomic intake",
        (planning.runs_in_a_transaction_of_their_own, planning.one_run_too_few, bus.events_outside_the_transaction),
    ),
    2: ("one id, one outcome", (planning.requests_are_planned_again, retrying.commands_are_carried_out_again)),
    3: (
        "no overlap",
        (
            planning.overlaps_are_not_looked_for,
            planning.overlaps_are_left_to_the_constraint,
            planning.hulls_are_compared,
            planning.intervals_are_compared_by_their_starts,
            undoing.undoes_what_was_published_again,
            undoing.undone_runs_count,
        ),
    ),
    4: (
        "limits hold",
        (
            starting.claims_beyond_limits,
            starting.starts_the_last_first,
            starting.claims_of_paused_backfills,
            starting.suspects_at_once,
            starting.writes_at_once,
            starting.batches_grow_without_bound,
            hosting.taken_seats_are_taken_again,
            hosting.seats_of_any_pool,
        ),
    ),
    5: (
        "never complete too early, never stuck",
        (
            planning.ends_by_counting,
            planning.ends_at_the_first_failure,
            cancelling.ends_as_if_none_was_cancelled,
            retrying.retries_ended_backfills,
            retrying.replaced_runs_count,
            bus.no_looks_at_takeover,
            starting.ranges_are_retried_whole,
            starting.ranges_fail_as_one,
            limiting.late_runs_go_on,
            limiting.tries_are_forgotten,
            reviewing.discards_only_what_is_queued,
            reviewing.no_review_begins,
            hosting.seats_are_not_freed,
        ),
    ),
    6: (
        "guarded transitions",
        (
            planning.states_by_assignment,
            starting.loss_by_assignment,
            cancelling.cancels_whole_batches,
            cancelling.cancels_accepted_runs,
            cancelling.starts_cancelled_runs,
            reviewing.publishes_before_the_review,
            reviewing.staged_runs_are_claimed_before_the_review,
            reviewing.discards_what_was_approved,
            publishing.lost_publishers_fail_their_run,
            publishing.conflicts_fail_their_run,
            publishing.publishers_do_not_pause,
            publishing.publishers_know_only_their_own_runs,
            publishing.lost_publishers_take_others_along,
            reviewing.reviews_what_is_not_finished,
            reviewing.publishes_over_changes,
            reviewing.approves_changes_by_itself,
            reviewing.approves_what_was_not_named,
            limiting.times_out_by_the_clock,
            limiting.late_runs_are_tried_again,
            limiting.ranges_have_the_time_of_one_run,
            budgets.budgets_pause_again,
            budgets.resumes_with_a_used_up_budget,
            budgets.pauses_before_the_budget_is_used_up,
        ),
    ),
    7: (
        "fenced attempts",
        (
            starting.no_attempt_guard,
            starting.begun_is_forgotten,
            starting.applications_are_mixed_up,
            starting.leases_by_the_clock,
            starting.leases_by_the_owners_settings,
            starting.begins_without_asking,
            starting.dead_heartbeats_renew_nothing,
            starting.first_losses_count,
            starting.servers_lost_make_suspects,
            starting.servers_lost_are_always_excused,
            cancelling.released_runs_are_lost,
            limiting.fails_before_its_driver_has_ended,
            hosting.launched_again,
            hosting.taken_over_without_acknowledgement,
            hosting.renewals_are_assumed,
            hosting.unheard_counts,
        ),
    ),
    8: ("consumed exactly once", (bus.no_epoch_assertion, bus.no_offset_comparison)),
    9: (
        "published exactly once",
        (
            bus.transactions_of_each_instance,
            bus.unknown_batch_is_dropped,
            bus.unknown_batch_is_resent,
            budgets.progress_is_announced_again,
            budgets.progress_at_every_change,
        ),
    ),
    10: (
        "a deadline fires once",
        (
            watching.late_is_met,
            watching.failures_fire,
            watching.decided_more_than_once,
            watching.any_end_is_called,
            watching.lost_runs_are_called,
            undoing.undos_are_announced_as_success,
            watching.failures_join_what_was_called,
            retrying.new_runs_without_deadlines,
            retrying.deadlines_of_replaced_runs_fire,
        ),
    ),
    11: (
        "a callback is claimed by one runner",
        (
            watching.callbacks_without_leases,
            watching.callbacks_without_tokens,
            watching.any_order,
            watching.all_call_a_receiver_that_is_down,
            watching.everything_is_dropped,
        ),
    ),
    12: ("poison stops nothing", (bus.poison_waits, bus.poison_takes_its_batch_along)),
    13: ("nothing acknowledged is lost", (bus.messages_before_commit,)),
    14: ("no busy wait, no missed wake-up", (bus.locked_rows_are_forgotten, bus.looks_wait_for_locks)),
}
MUTATIONS = {mutation.__name__: mutation for _, mutations in INVARIANTS.values() for mutation in mutations}
# What so few random schedules come upon that a test plays it: a backfill that waits long for a batch, several suspects of two
# backfills at once.
DIRECTED = {
    mutation.__name__: mutation for mutation in (starting.batches_keep_their_seats, starting.suspects_keep_their_place)
}
INVARIANT_OF = {mutation.__name__: n for n, (_, mutations) in INVARIANTS.items() for mutation in mutations}


@contextmanager
def applied(name: str) -> Iterator[Patches]:
    """Apply the mutation ``name``, a directed one or another, inside the block."""
    patches = Patches()
    try:
        (MUTATIONS | DIRECTED)[name](patches)
        yield patches
    finally:
        patches.undo()
