"""The traceback of an error has the user's frames only, in each error of its chain."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from retrofill.driver.execute import TaskTimedOut
from retrofill.driver.submit import SubmitFailed
from retrofill.errors import first_line
from retrofill.masking import masked
from retrofill.protocol.facts import error_info, whole_traceback


def in_between() -> None:
    """A user's frame below frames of a library and of Retrofill."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(in_retrofill).result()


def in_retrofill() -> None:
    masked(None)  # type: ignore[arg-type]


def chained() -> None:
    try:
        in_between()
    except TypeError as e:
        raise ValueError("no luck") from e


def caught(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as e:  # noqa: BLE001 - any
        return e
    raise AssertionError("nothing was raised")


def test_frames_of_libraries_are_dropped_wherever_they_are() -> None:
    error = caught(chained)
    found = error_info(error).traceback
    assert found is not None
    assert found.count("test_driver_tracebacks.py") == found.count('File "') == 5
    assert "masking.py" not in found and "concurrent/futures" not in found
    assert "The above exception was the direct cause" in found
    assert found.endswith("ValueError: no luck")
    whole = whole_traceback(error)
    assert "masking.py" in whole and "concurrent/futures" in whole


def test_an_error_without_a_frame_of_the_user_keeps_its_own() -> None:
    error = caught(in_retrofill)
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    found = error_info(error).traceback
    assert found is not None and "masking.py" in found


def test_other_libraries_are_the_users_choice() -> None:
    found = error_info(caught(lambda: json.loads("{"))).traceback
    assert found is not None and "json/decoder.py" in found


def test_groups_are_cut_too() -> None:
    def group() -> None:
        raise ExceptionGroup("both", [caught(in_between), caught(in_retrofill)])

    found = error_info(caught(group)).traceback
    assert found is not None
    assert "masking.py" not in found and "ExceptionGroup: both" in found


def test_the_whole_traceback_survives_an_error_without_a_text() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert first_line(Exception(whole_traceback(Silent())))
    assert traceback.format_exception(ValueError("x"))[0].strip() == whole_traceback(ValueError("x")).strip()


@pytest.mark.parametrize(
    ("cause", "traced"),
    [
        (SubmitFailed("job.py ended with signal 9: loading\nand so on"), False),
        (None, False),
        (ValueError("of the user"), True),
    ],
)
def test_of_a_script_that_timed_out_the_message_says_all_once(cause: Exception | None, traced: bool) -> None:
    error = TaskTimedOut("too long")
    error.__cause__ = cause
    found = error_info(error)
    assert (found.traceback is not None) == traced
    assert found.message == ("too long" if traced or cause is None else f"too long\n{cause}")
