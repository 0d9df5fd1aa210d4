"""Another Postgres takes over under the workload, planned and unplanned, as a synchronous and an asynchronous standby."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.crew import NAMES
from tests.chaos.server_faults import own
from tests.chaos.servers import POSTGRES
from tests.chaos.stage import Stage
from tests.support.switching import Server, servers_of


def postgres_switched(stage: Stage, rounds: int = 2) -> None:
    """The primary ends, a standby is promoted, and the old primary follows it, so many times in each way."""
    with _cluster(stage) as (primary, standby):
        for _ in range(rounds):
            for how in (signal.SIGINT, signal.SIGQUIT):
                _switch(stage, primary, standby, how)
                primary, standby = standby, primary
        # What an asynchronous standby lacks is lost, so only an orderly end is played with one.
        primary.be_asynchronous()
        _switch(stage, primary, standby, signal.SIGINT)
        standby.be_asynchronous()


def _switch(stage: Stage, primary: Server, standby: Server, how: signal.Signals) -> None:
    kind = "planned" if how == signal.SIGINT else "unplanned"
    stage.wait(stage.chance.uniform(0.5, 3.0))
    primary.end(how)
    standby.promote()
    stage.fault(f"{kind} switch of Postgres")
    stage.recovered(f"{kind} switch of Postgres")
    primary.follow(standby, "other")
    standby.be_synchronous_to("other")


@contextmanager
def _cluster(stage: Stage) -> Iterator[tuple[Server, Server]]:
    """Two servers with the data of the scenario's one, which gets the data of the one that is primary in the end."""
    settings, servers = stage.made.settings, own(stage)
    identity = servers.layout.identity()
    assert identity is not None
    servers.stop_part(POSTGRES)
    data = servers.layout.data(POSTGRES)
    with servers_of(stage.made, data, servers.layout.home, identity, 2) as found:
        _reconnect(stage)
        primary, standby = found
        standby.follow(primary, "other")
        primary.be_synchronous_to("other")
        yield primary, standby
        (last,) = [each for each in found if not each.is_standby()]
        last.end()
        shutil.rmtree(data)
        subprocess.run(["cp", "-a", str(last.data), str(data)], check=True)
    stage.made.settings = settings
    servers.start_part(POSTGRES)
    _reconnect(stage)
    stage.recovered("Postgres moved back")


def _reconnect(stage: Stage) -> None:
    """Services read their DSN when they start."""
    for name in NAMES:
        stage.crew.replace(name)
