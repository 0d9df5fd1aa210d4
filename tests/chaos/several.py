"""Several faults at once, chosen by the seed: all of them begin before the first is healed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

import psycopg

from tests.chaos.crew import NAMES
from tests.chaos.faults import REACH_SECONDS, a_replica, freeze_drivers, thaw_drivers
from tests.chaos.server_faults import back, held, own
from tests.chaos.servers import KAFKA, POSTGRES, postgres_address, through_postgres_line
from tests.chaos.stage import Stage
from tests.support.installation import until
from tests.support.proxy import Proxy

Fault = Callable[[Stage], AbstractContextManager[None]]
LONGEST = 12.0


def several(stage: Stage, rounds: int = 4, count: int = 3) -> None:
    """Play ``rounds`` rounds of ``count`` simultaneous faults."""
    for _ in range(rounds):
        group(stage, stage.chance.sample(FAULTS, count))


def group(stage: Stage, chosen: Sequence[Fault]) -> None:
    """Begin all faults, in the order of ``FAULTS``, then heal all of them."""
    with ExitStack() as healing:
        for fault in sorted(chosen, key=FAULTS.index):
            healing.enter_context(fault(stage))
            stage.wait(stage.chance.uniform(0.1, 1.5))
        stage.wait(stage.chance.uniform(2.0, LONGEST))
    stage.recovered("Kafka, Postgres and services: several faults at once")


@contextmanager
def frozen_service(stage: Stage) -> Iterator[None]:
    """Freeze one replica for longer than its session timeout."""
    name = stage.chance.choice(NAMES)
    frozen = a_replica(stage, name)
    frozen.freeze()
    stage.fault(f"together: SIGSTOP of {name}")
    yield
    if frozen.process.poll() is None:
        frozen.thaw()


@contextmanager
def killed_services(stage: Stage) -> Iterator[None]:
    """Kill two services at once."""
    for name in stage.chance.sample(NAMES, 2):
        a_replica(stage, name).kill()
        stage.fault(f"together: kill -9 of {name}")
    yield


@contextmanager
def frozen_drivers(stage: Stage) -> Iterator[None]:
    """Freeze all drivers; their host keeps running."""
    frozen = freeze_drivers(stage, "together: SIGSTOP of a driver")
    yield
    thaw_drivers(frozen)


@contextmanager
def killed_kafka(stage: Stage) -> Iterator[None]:
    """Kill the broker; supervisord restarts it."""
    own(stage).kill(KAFKA)
    stage.fault("together: kill -9 of Kafka")
    yield
    own(stage).wait_answers(KAFKA)


@contextmanager
def killed_postgres(stage: Stage) -> Iterator[None]:
    """Kill Postgres; supervisord restarts it."""
    own(stage).kill(POSTGRES)
    stage.fault("together: kill -9 of Postgres")
    yield
    own(stage).wait_answers(POSTGRES)


@contextmanager
def cut_postgres(stage: Stage) -> Iterator[None]:
    """Cut Postgres off from one service only."""
    name = stage.chance.choice(NAMES)
    with Proxy(postgres_address(stage.made)) as line:
        stage.crew.equip(name, **through_postgres_line(stage.made, name, line))
        stage.crew.replace(name)
        stage.wait(3.0)
        line.cut()
        stage.fault(f"together: cut off: Postgres for {name}")
        yield
        line.mend()
        back(stage, name)


@contextmanager
def open_transaction(stage: Stage) -> Iterator[None]:
    """Lock a backfill, its runs and a pipeline in another transaction."""
    with ExitStack() as transaction:
        until(lambda: _locked(stage, transaction), "another transaction has its locks", seconds=REACH_SECONDS)
        stage.fault("together: a write transaction left open")
        yield
        with suppress(psycopg.Error):
            transaction.close()  # killing Postgres has ended it


def _locked(stage: Stage, transaction: ExitStack) -> bool:
    try:
        transaction.enter_context(held(stage))
    except psycopg.Error:
        return False  # Postgres ends one transaction of a deadlock
    return True


# Those that need something to work come before those that end it.
FAULTS: list[Fault] = [
    open_transaction,
    frozen_drivers,
    cut_postgres,
    frozen_service,
    killed_services,
    killed_kafka,
    killed_postgres,
]
