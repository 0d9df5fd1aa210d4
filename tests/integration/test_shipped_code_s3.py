"""Code shipped by way of S3: the command line uploads it, the run-starter fetches it, with a secret that nobody sees.

Everything is real except Spark: the server, the CLI, the planner, the run-starter and its warm drivers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.installation import Installation
from tests.support.s3 import BUCKET, S3, SECRET, s3_server
from tests.support.shipped import FLOW, User, user_of
from tests.support.shown import everything


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3]:
    with s3_server(tmp_path) as server:
        yield server


@pytest.fixture
def user(installation: Installation, tmp_path: Path, s3: S3) -> User:
    return user_of(installation, tmp_path / "flows", **s3.environment())


@pytest.mark.long
def test_runs_have_the_code_of_the_bucket_or_none(user: User, s3: S3) -> None:
    one = user.apply("one")
    s3.object(one).write_bytes(b"PK")
    user.create("spoilt", 1)
    user.made.wait_state("spoilt", "failed")
    for failed in user.ask("backfill", "show", "spoilt")["failed_runs"]:
        assert (failed["error"]["type"], failed["code_sha256"]) == ("CodeUnavailable", one)
        assert failed["error"]["message"].startswith(f"s3://{BUCKET}/flows/{one}.zip has the hash ")
        assert "\n" not in failed["error"]["message"]

    # Following the advice works.
    (result,) = user.ask("pipelines", "apply", str(user.folder / "flow.py"))["pipelines"]
    assert (result["changed"], result["code_sha256"]) == (False, one)
    user.create("again", 1, "--reprocess", "failed")
    user.made.wait_state("again", "succeeded")
    assert (user.used("again"), user.wrote("again")) == ([one] * 3, ["one"] * 3)

    # What the machine has is not fetched again.
    s3.process.terminate()
    s3.process.wait(30)
    user.create("later", 2)
    user.made.wait_state("later", "succeeded")
    assert_hidden(user)


def assert_hidden(user: User) -> None:
    """The secret is in no output, log, topic or table."""
    shown = {"config": user.run("config").stdout}
    assert "RETROFILL_CODE_STORE_OPTIONS=**********" in shown["config"]
    shown |= everything(user.made)
    assert [place for place, text in shown.items() if SECRET in text] == []


def test_a_store_that_refuses_is_told_before_anything_is_published(
    installation: Installation, tmp_path: Path, s3: S3
) -> None:
    user = User(installation, tmp_path, s3.environment(secret=f"{SECRET}-other"))
    (user.folder / "flow.py").write_text(FLOW)
    done = user.run("pipelines", "apply", str(user.folder / "flow.py"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"retrofill: the code store s3://{BUCKET}/flows cannot be written: ")
    assert done.stderr.count("\n") == 1
    assert SECRET not in done.stderr
    assert user.made.query("SELECT name FROM pipeline") == []
