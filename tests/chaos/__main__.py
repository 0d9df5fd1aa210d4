"""The long run: ``python -m tests.chaos`` plays all scenarios with seeds and prints a table."""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos.oracle import Violation
from tests.chaos.plays import PLAYS, SPARK
from tests.chaos.profiles import FULL, PROFILES
from tests.chaos.reliability import PAGE, section, write
from tests.chaos.report import Result, facts, row, table
from tests.chaos.running import run
from tests.chaos.scenarios import Scenario
from tests.chaos.servers import OwnServers


def main() -> int:
    """Play the scenarios. The exit status says whether every promise was kept."""
    asked = _arguments()
    # On SIGTERM, exit normally so that the servers are stopped too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # librdkafka logs every lost connection, which is expected here.
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(1_000_000)
    names = asked.only.split(",") if asked.only else [*PLAYS, SPARK]
    if unknown := set(names) - {*PLAYS, SPARK}:
        _say(f"no scenario is called {', '.join(sorted(unknown))}; there are {', '.join([*PLAYS, SPARK])}")
        return 2
    results: list[Result] = []
    for number in range(asked.rounds):
        for name in names:
            _say(f"{name}, seed {seed + number} ...")
            results.append(_play(name, seed + number, asked.profile))
            if results[-1].violations:
                _say(results[-1].explain())
            _say(_shown(results[-1:]))
    print(_shown(results))  # noqa: T201
    if asked.markdown is not None:
        asked.markdown.write_text(section(results, asked.profile) + "\n")
    if asked.reliability is not None:
        write(asked.reliability, results, asked.profile)
    return 1 if any(result.violations for result in results) else 0


def _shown(results: list[Result]) -> str:
    return "\n".join([table([row(each) for each in results]), "", *facts(results)])


def _say(text: str) -> None:
    """Print progress to stderr; stdout has only the table."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _play(name: str, seed: int, profile: str) -> Result:
    """Play one scenario on its own servers.

    A scenario that cannot be played counts as a violation.
    """
    began = time.monotonic()
    try:
        result = _played(name, seed, PROFILES[profile])
    except Exception as e:  # noqa: BLE001 - this scenario failed; play the others anyway
        _say(traceback.format_exc())
        broken = [Violation("the_scenario_itself", f"it could not be played: {type(e).__name__}: {e}")]
        result = Result(name, seed, time.monotonic() - began, Counter(), 0, 0, broken)
    result.profile = "" if profile == FULL else profile
    return result


def _played(name: str, seed: int, plays: Mapping[str, Scenario]) -> Result:
    if name == SPARK:
        from tests.chaos.spark import spark_stack

        return spark_stack(seed, name)
    with tempfile.TemporaryDirectory(prefix="retrofill-chaos-") as home:
        servers = OwnServers(Path(home))
        try:
            servers.start()
            made = servers.installation()
            try:
                result = run(name, plays[name], made, seed, servers=servers)
                if result.violations:
                    _say(f"what its processes said, and what Kafka has, is kept in {_kept(Path(home))}")
                return result
            finally:
                made.close()
        finally:
            servers.stop()


def _kept(home: Path) -> Path:
    """Keep a copy of all logs and of Kafka's data for debugging."""
    folder = Path(tempfile.mkdtemp(prefix="retrofill-chaos-kept-"))
    for path in (*home.rglob("*.log"), *home.rglob("*.json")):
        copy = folder / path.relative_to(home)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return folder


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=_seed, help="the first seed, or 'today' for that of the day; default: any")
    parser.add_argument("--rounds", type=int, default=1, help="how often all is played, each time under the next seed")
    parser.add_argument("--only", default="", help="scenarios, comma separated: default all long ones")
    parser.add_argument("--profile", choices=sorted(PROFILES), default=FULL, help="the sizes; default: full")
    parser.add_argument("--markdown", type=Path, help="a file for the commit, the figures and the table")
    parser.add_argument(
        "--reliability",
        type=Path,
        nargs="?",
        const=PAGE,
        help="the page whose section between its markers is rewritten; default: docs/reliability.md",
    )
    return parser.parse_args()


def _seed(text: str) -> int:
    return int(f"{datetime.now(UTC):%Y%m%d}") if text == "today" else int(text)


if __name__ == "__main__":
    sys.exit(main())
