"""Several faults at once, chosen by the seed: all of them begin before the first is healed."""

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
    """Play ``rounds`` rounds of ``count`` simultaneous faults."""
    for _ in range(rounds):
        group(stage, stage.chance.sample(FAULTS, count))


def group(stage: Stage, chosen: Sequence[Fault]) -> None:
    """Begin all faults, then heal all of them."""
    with ExitStack() as healing:
        for fault in chosen:
            healing.enter_context(fault(stage))
            stage.wait(stage.chance.uniform(0.1, 1.5))
        stage.wait(stage.chance.uniform(2.0, LONGEST))
    stage.recovered("Kafka, Postgres and services: several faults at once")


@contextmanager
def frozen_service(stage: Stage) -> Iterator[None]:
    """Freeze one replica for longer than its session timeout."""
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
    """Kill two services at once."""
    for name in stage.chance.sample(NAMES, 2):
        for replica in stage.crew.of(name)[:1]:
            replica.kill()
            stage.fault(f"together: kill -9 of {name}")
    yield


@contextmanager
def frozen_drivers(stage: Stage) -> Iterator[None]:
    """Freeze all drivers; their host keeps running."""
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
        with suppress(psycopg.Error):
            # If another fault has already taken Postgres down, no lock can be taken.
            transaction.enter_context(held(stage))
            stage.fault("together: a write transaction left open")
        yield
        with suppress(psycopg.Error):
            transaction.close()  # killing Postgres has ended it


FAULTS: list[Fault] = [
    frozen_service,
    killed_services,
    frozen_drivers,
    killed_kafka,
    killed_postgres,
    cut_postgres,
    open_transaction,
]
