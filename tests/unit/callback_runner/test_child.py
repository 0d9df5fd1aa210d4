"""One call in a real process: its result, its termination, and the arguments that the function
gets.
"""

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.installation import until
from tests.support.offline import NO_DATABASE

from callback_runner.call import LEASE_SECONDS, Begun, Call, FunctionTry, Kinds
from callback_runner.decide import Outcome, Raised, Returned
from callback_runner.function_child import Lifeline
from callback_runner.functions import Child
from callback_runner.record import Claim
from retrofill_core.settings import Settings
from retrofill_core.store import callbacks

FUNCTIONS = """
import asyncio, ctypes, json, os, pathlib, signal, subprocess, sys, time

def save(path, **kwargs):
    pathlib.Path(path).write_text(json.dumps(kwargs))

def with_context(path, *, context):
    save(path, **context)

async def later(path, context=None):
    await asyncio.sleep(0.01)
    save(path, **context)

def fail(text):
    print("first some output")
    raise RuntimeError(text)

def shout():
    for _ in range(2000):
        print("x" * 1000)
    sys.exit("the last words")

def leave(status):
    os._exit(status)

def die():
    os.kill(os.getpid(), 9)

def hang(path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    pathlib.Path(path).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(60)

def work_until(path, begun):
    pathlib.Path(begun).write_text(str(os.getpid()))
    while not os.path.exists(path):
        time.sleep(0.01)

def leave_something_behind(path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    pathlib.Path(path).write_text(str(child.pid))

def hold_the_interpreter(seconds):
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    time.sleep(0.5)

def stop(seconds):
    subprocess.Popen(["/bin/sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.5)

def stop_all(seconds):
    subprocess.Popen(["/bin/sh", "-c", f"sleep {seconds}; kill -CONT -{os.getpid()}"], start_new_session=True)
    os.killpg(0, signal.SIGSTOP)
    time.sleep(0.5)

def block_signals(seconds):
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
    time.sleep(seconds)

def wait_for_a_fork(seconds):
    if os.fork() == 0:
        time.sleep(seconds)
        os._exit(0)
    os.wait()

def return_twice(seconds):
    if os.fork():
        time.sleep(seconds)

def exit_zero(seconds):
    time.sleep(seconds)
    sys.exit()

def exit_hard(seconds):
    time.sleep(seconds)
    os._exit(0)

def close_streams(seconds):
    os.closerange(0, 3)
    time.sleep(seconds)

number = 7
"""
MANNERS = [
    "hold_the_interpreter",
    "stop",
    "stop_all",
    "block_signals",
    "wait_for_a_fork",
    "return_twice",
    "exit_zero",
    "exit_hard",
    "close_streams",
]
CONTEXT = {"deadline_id": 5, "idempotency_key": "5:page", "attempt": 1}


@pytest.fixture
def call(tmp_path, monkeypatch):
    (tmp_path / "their_functions.py").write_text(FUNCTIONS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started = []

    def start(name, lease_seconds=30.0, **kwargs):
        child = Child(f"their_functions:{name}", kwargs, CONTEXT, time.monotonic() + lease_seconds)
        started.append(child)
        return child

    yield start
    for child in started:
        child.finish()


def claimed(kwargs):
    return Claim(
        deadline_id=5,
        shard=0,
        name="page",
        kind="function",
        options={},
        pipeline="p",
        attempts=1,
        runners_lost=0,
        token="t",
        kwargs=kwargs,
        event={},
        off_since=None,
        due_at=datetime.now(UTC),
    )


@pytest.fixture
def trying(call):
    """Starts a try of one of the functions."""
    made = []

    def start(name, **kwargs):
        claim = claimed(kwargs)
        made.append(FunctionTry(f"their_functions:{name}", claim, time.monotonic() + 30.0))
        return made[-1]

    yield start
    for one in made:
        one.kill()
        one.finish()


def result(child):
    assert child.wait(20)
    return child.finish()


def pids_of(path):
    for _ in range(200):
        if path.exists() and (text := path.read_text()):
            return [int(pid) for pid in text.split()]
        time.sleep(0.05)
    raise AssertionError("the function did not begin")


def all_gone(pids):
    for _ in range(100):
        if not any(is_running(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def is_running(pid):
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_function_gets_its_arguments_and_no_context_that_it_did_not_ask_for(call, tmp_path):
    out = tmp_path / "out"
    assert result(call("save", path=str(out), text="näher", n=[1, None])) is None
    assert json.loads(out.read_text()) == {"text": "näher", "n": [1, None]}


@pytest.mark.parametrize("name", ["with_context", "later"])
def test_the_context_is_given_where_asked_for_and_coroutines_are_awaited(call, tmp_path, name):
    out = tmp_path / "out"
    assert result(call(name, path=str(out))) is None
    assert json.loads(out.read_text()) == CONTEXT


def test_a_context_among_the_arguments_is_the_users(call, tmp_path):
    out = tmp_path / "out"
    assert result(call("with_context", path=str(out), context={"own": 1})) is None
    assert json.loads(out.read_text()) == {"own": 1}


def test_an_exception_is_the_error_with_what_was_printed(call):
    error = result(call("fail", text="no such pager"))
    assert error.startswith("first some output")
    assert error.endswith("RuntimeError: no such pager")


def test_of_much_output_the_end_is_kept(call):
    error = result(call("shout"))
    assert error.endswith("the last words")
    assert len(error) <= 4000


def test_an_end_without_a_word_says_how(call):
    assert result(call("leave", status=3)) == "the call ended with no output: exit status 3"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nothing_here", "has no attribute 'nothing_here'"),
        ("number", "is not a function but of type int"),
    ],
)
def test_what_cannot_be_called_is_an_error(call, target, said):
    assert said in result(call(target))


def test_arguments_larger_than_a_pipe_arrive(call, tmp_path):
    out = tmp_path / "out"
    text = "x" * 900_000
    assert result(call("save", path=str(out), text=text)) is None
    assert json.loads(out.read_text()) == {"text": text}


def test_a_killed_call_takes_along_what_it_started(call, tmp_path):
    path = tmp_path / "pids"
    child = call("hang", path=str(path))
    pids = pids_of(path)
    assert not child.wait(0.1)
    child.kill()
    assert child.wait(5)
    assert child.finish() == "the call ended with no output: killed by SIGKILL"
    assert all_gone(pids)


def test_what_a_function_leaves_behind_is_killed_and_does_not_delay_its_end(call, tmp_path):
    path = tmp_path / "pids"
    assert result(call("leave_something_behind", path=str(path))) is None
    assert all_gone(pids_of(path))


def test_a_call_whose_claim_is_not_renewed_ends_itself(call, tmp_path):
    path = tmp_path / "pids"
    child = call("hang", lease_seconds=2.0, path=str(path))
    pids = pids_of(path)
    assert child.wait(5)
    assert all_gone(pids)


def test_a_call_whose_claim_is_renewed_goes_on(call, tmp_path):
    """It returns after the leases that it was given at first, however late it is told of the last one."""
    enough, begun = tmp_path / "enough", tmp_path / "begun"
    leases = [time.monotonic() + seconds for seconds in (2.0, 2.5, 600.0)]
    child = call("work_until", lease_seconds=2.0, path=str(enough), begun=str(begun))
    for alive_until in leases:
        child.lease_renewed(alive_until)
    pids_of(begun)
    until(lambda: time.monotonic() > leases[1], "its first leases are over")
    enough.touch()
    assert result(child) is None


@pytest.mark.parametrize("manner", MANNERS)
def test_a_call_that_is_silent_for_longer_than_its_lease_is_made_once(call, manner):
    child = call(manner, lease_seconds=1.0, seconds=2.5)
    while not child.wait(0.3):
        child.lease_renewed(time.monotonic() + 1.0)
    assert child.finish() is None


@pytest.mark.parametrize("manner", MANNERS)
def test_whatever_a_call_does_it_can_be_killed(call, tmp_path, manner):
    child = call(manner, seconds=600)
    assert not child.wait(0.5)
    child.kill()
    assert child.wait(5)
    assert child.signalled


@pytest.mark.parametrize("renewals", [1, 3, 3000])
def test_renewals_that_wait_are_read_before_a_claim_is_given_up(renewals):
    """The thread that reads them may get to it late: user code held the interpreter's lock, or all was stopped."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb", buffering=0) as runner:
        claim = Lifeline(reading)
        claim.renewed(repr(time.monotonic() - 1.0).encode())
        for left in range(renewals):
            runner.write(f"{time.monotonic() + left - 5.0 + 65.0 * (left == renewals - 1)!r}\n".encode())
        runner.write(b"0.")  # the rest of this line is on its way
        assert claim.held()
        assert claim.left() > 50
        assert not claim.wait(0)
        runner.write(b"0\n")
        assert not claim.held()


def test_a_silent_call_ends_once_its_claim_is_lost(call):
    child = call("hold_the_interpreter", lease_seconds=1.0, seconds=1.5)
    assert child.wait(5)
    assert child.signalled


def test_renewals_of_hours_wait_for_a_call(call):
    """More than one read returns, the last of which counts."""
    child = call("hold_the_interpreter", lease_seconds=1.0, seconds=1.5)
    until(lambda: not child._writer.is_alive(), "the call is sent")
    for n in range(3000):
        child.lease_renewed(time.monotonic() + n / 100)
    assert result(child) is None


def test_a_renewal_before_the_process_reads_counts(call, tmp_path):
    path = tmp_path / "pids"
    child = call("hang", lease_seconds=2.0, path=str(path))
    until(lambda: not child._writer.is_alive(), "the call is sent")
    child.lease_renewed(time.monotonic() + 60.0)
    pids_of(path)
    assert not child.wait(3.0)


def test_after_its_lease_a_process_calls_nothing(call, tmp_path):
    path = tmp_path / "out"
    child = call("save", lease_seconds=-1.0, path=str(path))
    assert result(child) == "the call ended with no output: killed by SIGKILL"
    assert not path.exists()


class Beginning(Kinds):
    """Begins what ``start`` returns."""

    def __init__(self, start: Callable[[], Begun]) -> None:
        self._start = start

    def begin(self, claim: Claim, alive_until: Callable[[], float]) -> Begun:
        return self._start()


class Lease:
    """A call whose claim's commit took ``seconds``, while its process was suspended or the database slow.

    ``renews``: whether the claim is still its own; ``renewed``: how often that was asked.
    """

    def __init__(self, patch, seconds, renews=True, begins: Callable[[], Begun] = Returned):
        self.renewed = 0
        self.recorded: list[Outcome] = []
        self.renews = renews
        patch.setattr(callbacks, "renew", self._renew)
        patch.setattr(Call, "_record", lambda _, outcome: self.recorded.append(outcome))
        self.call = Call(claimed({}), Settings(), NO_DATABASE, Beginning(begins), lambda _: None)
        self.call._alive_until -= seconds

    def _renew(self, *_):
        self.renewed += 1
        return self.renews

    def run(self):
        self.call.start()
        self.call.join(20)


def test_a_runner_that_slept_past_its_lease_begins_no_call(monkeypatch):
    lease = Lease(monkeypatch, LEASE_SECONDS + 1, renews=False, begins=lambda: pytest.fail("it began"))
    lease.run()
    assert (lease.renewed, lease.recorded) == (1, [])


def test_a_call_whose_claim_took_as_long_as_its_lease_is_made_if_the_claim_is_still_its_own(monkeypatch):
    lease = Lease(monkeypatch, LEASE_SECONDS + 1)
    lease.run()
    assert (lease.renewed, lease.recorded) == (1, [Returned()])
    assert lease.call._alive_until > time.monotonic() + LEASE_SECONDS - 5


def test_a_call_whose_claim_took_most_of_its_lease_renews_it_at_once(monkeypatch):
    told: list[float] = []

    class Trying:
        """Ends once it is told of a renewed lease."""

        begun = True

        def wait(self, seconds: float) -> bool:
            return bool(told)

        def lease_renewed(self, alive_until: float) -> None:
            told.append(alive_until)

        def kill(self) -> None:
            pass

        def finish(self) -> Outcome:
            return Returned()

    lease = Lease(monkeypatch, LEASE_SECONDS - 1, begins=lambda: (Trying(), 60.0))
    lease.run()
    assert (lease.renewed, lease.recorded) == (1, [Returned()])
    assert told[0] > time.monotonic() + LEASE_SECONDS - 5


def ended(trying):
    """The outcome that the runner records for a try that ended by itself."""
    assert trying.wait(20)
    trying.kill()
    return trying.finish()


def test_what_a_try_came_to(trying, tmp_path):
    assert ended(trying("save", path=str(tmp_path / "out"))) == Returned()
    failed = ended(trying("fail", text="no such pager"))
    assert isinstance(failed, Raised)
    assert not failed.uncertain
    # It may have died at any point of the function, so the effect is uncertain.
    died = Raised("the call ended with no output: killed by SIGKILL", uncertain=True)
    assert ended(trying("die")) == died


def test_a_try_that_is_killed_leaves_it_to_the_killer_to_say_why(trying, tmp_path):
    path = tmp_path / "pids"
    one = trying("hang", path=str(path))
    pids_of(path)
    one.kill()
    assert one.wait(20)
    assert one.finish() is None
    assert one.begun


def test_a_function_is_found_in_the_working_directory_whatever_else_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name in ("selectors", "inspect", "queue"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this is no module of Python')")
    (tmp_path / "alerts.py").write_text("def page(**context):\n    pass\n")
    child = Child("alerts:page", {}, CONTEXT, time.monotonic() + 30.0)
    assert child.wait(30.0)
    assert child.finish() is None
