"""A model of two outbox relays that may crash or pause at any step, explored through every
interleaving.

The model follows the implementation. The relay's row in Postgres has its epoch, the newest batch's
number and that batch's row ids. Deleting a published batch and numbering the next one are one
transaction. A Kafka transaction publishes the rows together with the cursor. It stays open before
it commits, and a successor's ``init_transactions`` aborts it and fences its producer. Rows of one
key are committed in order.

Kafka permanently refuses one row, so its batch never commits. Once that transaction is aborted (by
its own producer or by a successor), the batch is narrowed under the same number, and a row that is
refused alone is set aside.

A batch may also be too slow: its relay aborts, and then relays publish with another transactional
id, which the relay's row names. A relay of an older release knows only the first id.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import pytest

# The model changes with the protocol only; tests/simulation plays the relays themselves.
pytestmark = pytest.mark.long
ROWS = 3
RELAYS = 2
IDS = 2


@dataclass(frozen=True)
class Protocol:
    """The takeover order, and whether numbering asserts the epoch."""

    takeover: tuple[str, ...] = ("epoch", "fence", "cursor", "recover")
    asserts_epoch: bool = True
    crashes: int = 2
    # The row that Kafka refuses. It is only set aside when it is alone in its batch, and a decision
    # applies to that batch only.
    refuses: int | None = None
    sets_aside_alone: bool = True
    decides_by_batch: bool = True
    # How often a batch is slow, which changes the id, and whether relay B is of an older release.
    slow: int = 0
    change_asserts_epoch: bool = True
    older: bool = False
    older_waits: bool = True

    @property
    def takeovers(self):
        return RELAYS + self.crashes + self.slow


class Relay(NamedTuple):
    """The in-memory state of one relay process."""

    step: int = 0  # takeover progress; the takeover's length means done
    epoch: int = 0
    id: int = 0
    producer: int = 0
    cursor: int = 0
    batch: tuple[int, tuple[int, ...]] | None = None  # the batch that it has to publish
    sent: bool = False  # its Kafka transaction is open and complete
    refused: tuple[int, tuple[int, ...]] | None = None  # the refused batch that the decision is about
    aborted: bool = False  # its own producer has aborted the transaction
    changes: bool = False  # its own producer has aborted a slow transaction, and the id changes next


class World(NamedTuple):
    """Postgres, Kafka and the relay processes."""

    written: int = 0  # number of rows committed to the outbox
    outbox: tuple[int, ...] = ()
    epoch: int = 0
    number: int = 0
    ids: tuple[int, ...] = ()
    id: int = 0
    producers: tuple[int, ...] = (0,) * IDS
    read: tuple[int, ...] = ()  # what a read_committed subscriber has seen
    cursor: int = 0
    aside: tuple[int, ...] = ()
    relays: tuple[Relay, ...] = (Relay(),) * RELAYS
    crashes: int = 0
    slow: int = 0


def moves(world, protocol):
    """Every possible next step, with its name."""
    if world.written < ROWS:
        yield "commit a row", world._replace(written=world.written + 1, outbox=(*world.outbox, world.written))
    for i, relay in enumerate(world.relays):
        for name, after, mine in steps(world, relay, protocol, older=protocol.older and i == 1):
            yield f"{'AB'[i]}: {name}", after._replace(relays=(*after.relays[:i], mine, *after.relays[i + 1 :]))


def steps(world, relay, protocol, *, older):
    """One relay's possible next steps: (name, next world, next relay)."""
    if relay != Relay() and world.crashes < protocol.crashes:
        yield "crash", world._replace(crashes=world.crashes + 1), Relay()
    if relay.step < len(protocol.takeover):
        yield from taking_over(world, relay, protocol, older=older)
    elif relay.changes:
        current = relay.epoch == world.epoch or not protocol.change_asserts_epoch
        yield "change the id", world._replace(id=(world.id + 1) % IDS) if current else world, Relay()
    elif relay.aborted:
        yield from settled(world, relay, protocol)
    elif relay.batch is None:
        yield from next_batch(world, relay, protocol)
    elif relay.producer != world.producers[relay.id]:
        yield "refused by Kafka", world, Relay()
    elif protocol.refuses in relay.batch[1]:
        yield "refused, aborted", world, relay._replace(refused=relay.batch, batch=None, aborted=True)
        if world.crashes < protocol.crashes:
            yield "refused, abort unknown", world._replace(crashes=world.crashes + 1), Relay(refused=relay.batch)
    elif not relay.sent:
        yield "produce", world, relay._replace(sent=True)
        if world.slow < protocol.slow and not older:
            yield "slow, aborted", world._replace(slow=world.slow + 1), relay._replace(batch=None, changes=True)
    else:
        number, rows = relay.batch
        committed = world._replace(read=world.read + rows, cursor=number)
        yield "commit in Kafka", committed, relay._replace(batch=None, sent=False)


def taking_over(world, relay, protocol, *, older):
    following = relay._replace(step=relay.step + 1)
    match protocol.takeover[relay.step]:
        case "id":
            yield "read the id", world, following._replace(id=world.id)
        case "epoch" if older and protocol.older_waits and world.id != 0:
            return
        case "epoch" if world.epoch < protocol.takeovers:
            id = relay.id if "id" in protocol.takeover else 0 if older else world.id
            yield (
                "take the epoch",
                world._replace(epoch=world.epoch + 1),
                following._replace(epoch=world.epoch + 1, id=id),
            )
        case "fence" if sum(world.producers) < protocol.takeovers:
            number = world.producers[relay.id] + 1
            producers = (*world.producers[: relay.id], number, *world.producers[relay.id + 1 :])
            yield "fence", world._replace(producers=producers), following._replace(producer=number)
        case "cursor":
            yield "read the cursor", world, following._replace(cursor=world.cursor)
        case "recover" if protocol.asserts_epoch and relay.epoch != world.epoch:
            yield "refused by Postgres", world, Relay()
        case "recover" if world.number <= relay.cursor:
            for name, after, batch in dropped_and_numbered(world, relay.cursor):
                yield f"drop and {name}", after, following._replace(batch=batch)
        case "recover":
            # Only rows that still exist can be sent again.
            yield from decided(world, following, protocol)


def settled(world, relay, protocol):
    """After its own producer has aborted: one transaction in Postgres."""
    if relay.epoch != world.epoch:
        yield "refused by Postgres", world, Relay()
        return
    yield from decided(world, relay._replace(aborted=False), protocol)


def decided(world, relay, protocol):
    """The numbered batch was not published: resend it, or, if it was refused, narrow it or set the
    row aside.
    """
    number, refused = relay.refused or (0, ())
    relay = relay._replace(refused=None)
    rows = tuple(row for row in world.ids if row in world.outbox)
    if not refused or (protocol.decides_by_batch and (number, refused) != (world.number, world.ids)):
        yield "resend", world, relay._replace(batch=(world.number, rows))
    elif len(refused) > 1 and protocol.sets_aside_alone:
        for count in range(1, len(refused)):
            first = rows[:count]
            yield f"narrow to {count}", world._replace(ids=first), relay._replace(batch=(world.number, first))
    else:
        left = tuple(row for row in world.outbox if row not in refused)
        yield "set aside", world._replace(outbox=left, ids=(), aside=world.aside + refused), relay


def next_batch(world, relay, protocol):
    """The previous batch, if any, is published: delete it and number the next one in one
    transaction.
    """
    if protocol.asserts_epoch and relay.epoch != world.epoch:
        yield "refused by Postgres", world, Relay()
        return
    for name, after, batch in dropped_and_numbered(world, world.number):
        if after != world or batch is not None:
            yield name, after, relay._replace(batch=batch)


def dropped_and_numbered(world, last):
    """Delete the numbered batch's rows, then number any prefix of the rest, or nothing if no row is
    left.
    """
    left = tuple(row for row in world.outbox if row not in world.ids)
    if not left:
        yield "number nothing", world._replace(outbox=left, number=last, ids=()), None
    for count in range(1, len(left) + 1):
        after = world._replace(outbox=left, number=last + 1, ids=left[:count])
        yield f"number {count}", after, (last + 1, left[:count])


def wrong(world, protocol):
    """The invariant that a subscriber sees violated, or ``None``."""
    if len(set(world.read)) < len(world.read):
        return "twice"
    if list(world.read) != sorted(world.read):
        return "out of order"
    if len(set(world.aside)) < len(world.aside) or set(world.aside) & set(world.read):
        return "twice"
    if not set(world.aside) <= {protocol.refuses}:
        return "set aside, though nothing was wrong with it"
    if not set(range(world.written)) <= set(world.read) | set(world.outbox) | set(world.aside):
        return "lost"
    return None


def explore(protocol):
    """Breadth-first search. Returns the number of worlds, the nearest violation, and the steps that
    lead to it.
    """
    start = World()
    before: dict[World, tuple[World, str] | None] = {start: None}
    queue = deque([start])
    stuck = []
    while queue:
        world = queue.popleft()
        if complaint := wrong(world, protocol):
            return len(before), complaint, trace(before, world)
        following = list(moves(world, protocol))
        # The model bounds takeovers and reality does not, so worlds that used them all up are not
        # stuck.
        bounded = protocol.takeovers in (world.epoch, sum(world.producers))
        if not following and not bounded and sorted(world.read + world.aside) != list(range(ROWS)):
            stuck.append(trace(before, world))
        for name, after in following:
            if after not in before:
                before[after] = (world, name)
                queue.append(after)
    return len(before), "stuck" if stuck else None, stuck[0] if stuck else []


def trace(before, world):
    names = []
    while before[world] is not None:
        world, name = before[world]
        names.append(name)
    return names[::-1]


AS_BUILT = {
    "all rows are good": Protocol(),
    "one is refused": Protocol(crashes=1, refuses=1),
    "some batches are slow": Protocol(crashes=0, slow=2),
    "one relay is of an older release": Protocol(crashes=0, slow=2, older=True),
}


@pytest.mark.parametrize("protocol", AS_BUILT.values(), ids=AS_BUILT.keys())
def test_as_built_every_row_is_published_once_and_in_order_or_set_aside(protocol):
    worlds, complaint, how = explore(protocol)
    assert complaint is None, how
    # The exploration was not trivial: it covered crashes, takeovers and all three rows.
    assert worlds > 10_000


@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param(Protocol(asserts_epoch=False), id="numbering does not assert the epoch"),
        pytest.param(Protocol(("epoch", "cursor", "fence", "recover")), id="the cursor is read before fencing"),
        pytest.param(Protocol(("cursor", "epoch", "fence", "recover")), id="the cursor is read first"),
        pytest.param(Protocol(("epoch", "cursor", "recover", "fence")), id="recovered before fencing"),
        pytest.param(Protocol(crashes=1, refuses=1, sets_aside_alone=False), id="the whole refused batch is set aside"),
        pytest.param(
            Protocol(crashes=1, refuses=1, decides_by_batch=False), id="what was decided is done to another batch"
        ),
        pytest.param(Protocol(crashes=0, slow=1, change_asserts_epoch=False), id="the id changes at any epoch"),
        pytest.param(
            Protocol(("id", "epoch", "fence", "cursor", "recover"), crashes=0, slow=1), id="the id is read first"
        ),
        pytest.param(
            Protocol(crashes=0, slow=1, older=True, older_waits=False), id="an older release uses the first id"
        ),
    ],
)
def test_each_clause_is_needed(protocol):
    _, complaint, how = explore(protocol)
    assert complaint in ("lost", "twice", "out of order", "set aside, though nothing was wrong with it"), how
