"""Several faults at once, which and whose by the seed: each is begun before the first of them is healed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

import psutil
import psycopg

from tests.chaos.crew import NAMES
from tests.chaos.faults import drivers_of
from tests.chaos.server_faults import back, held, own
from tests.chaos.servers import KAFKA, POSTGRES, postgres_address, through_postgres_line
from tests.chaos.stage import Stage
from tests.support.proxy import Proxy

Fault = Callable[[Stage], AbstractContextManager[None]]
LONGEST = 12.0


def several(stage: Stage, rounds: int = 4, count: int = 3) -> None:
    """Rounds of so many faults together."""
    for _ in range(rounds):
        group(stage, stage.chance.sample(FAULTS, count))


def group(stage: Stage, chosen: Sequence[Fault]) -> None:
    """Begin all of them, then heal all of them."""
    with ExitStack() as healing:
        for fault in chosen:
            healing.enter_context(fault(stage))
            stage.wait(stage.chance.uniform(0.1, 1.5))
        stage.wait(stage.chance.uniform(2.0, LONGEST))
    stage.recovered("Kafka, Postgres and services: several faults at once")


@contextmanager
def frozen_service(stage: Stage) -> Iterator[None]:
    """One replica stands still for longer than its session may last."""
    name = stage.chance.choice(NAMES)
    frozen = stage.crew.of(name)[:1]
    for replica in frozen:
        replica.freeze()
    stage.fault(f"together: SIGSTOP of {name}")
    yield
    for replica in frozen:
        if replica.process.poll() is None:
            replica.thaw()


@contextmanager
def killed_services(stage: Stage) -> Iterator[None]:
    """Two services at once."""
    for name in stage.chance.sample(NAMES, 2):
        for replica in stage.crew.of(name)[:1]:
            replica.kill()
            stage.fault(f"together: kill -9 of {name}")
    yield


@contextmanager
def frozen_drivers(stage: Stage) -> Iterator[None]:
    """All drivers stand still; their host lives."""
    frozen = drivers_of(stage)
    for driver in frozen:
        with suppress(psutil.NoSuchProcess):
            driver.suspend()
            stage.fault("together: SIGSTOP of a driver")
    yield
    for driver in frozen:
        with suppress(psutil.NoSuchProcess):
            driver.resume()


@contextmanager
def killed_kafka(stage: Stage) -> Iterator[None]:
    """The broker; supervisord starts it again."""
    own(stage).kill(KAFKA)
    stage.fault("together: kill -9 of Kafka")
    yield
    own(stage).wait_answers(KAFKA)


@contextmanager
def killed_postgres(stage: Stage) -> Iterator[None]:
    """The server; supervisord starts it again."""
    own(stage).kill(POSTGRES)
    stage.fault("together: kill -9 of Postgres")
    yield
    own(stage).wait_answers(POSTGRES)


@contextmanager
def cut_postgres(stage: Stage) -> Iterator[None]:
    """Postgres for one service alone."""
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
    """Somebody holds a backfill, its runs and a pipeline."""
    with ExitStack() as transaction:
        with suppress(psycopg.Error):
            # Where Postgres is away already, nobody can hold anything in it.
            transaction.enter_context(held(stage))
            stage.fault("together: a write transaction left open")
        yield
        with suppress(psycopg.Error):
            transaction.close()  # a kill of Postgres has ended it


FAULTS: list[Fault] = [
    frozen_service,
    killed_services,
    frozen_drivers,
    killed_kafka,
    killed_postgres,
    cut_postgres,
    open_transaction,
]
