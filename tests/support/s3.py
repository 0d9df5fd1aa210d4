"""A real S3-compatible server: ``rclone serve s3`` over a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support.installation import until
from tests.support.listening import listening

RCLONE = Path(sys.executable).with_name("rclone")
KEY, SECRET = "AKIAHUNTER2", "hunter2-hunter2-hunter2"
BUCKET = "code"


@dataclass(frozen=True)
class S3:
    """A server with one bucket, whose objects are files in ``bucket``."""

    bucket: Path
    process: subprocess.Popen[bytes]
    port: int

    def environment(self, port: int | None = None, **more: Any) -> dict[str, str]:
        """The settings of a code store in the bucket. ``port``: that of a proxy before the server."""
        endpoint = {"endpoint_url": f"http://127.0.0.1:{port or self.port}", "region_name": "us-east-1"}
        options = {"key": KEY, "secret": SECRET, "client_kwargs": endpoint, **more}
        return {
            "RETROFILL_CODE_STORE": f"s3://{BUCKET}/flows",
            "RETROFILL_CODE_STORE_OPTIONS": json.dumps(options),
        }

    def object(self, sha256: str) -> Path:
        """The file of an archive."""
        return self.bucket / "flows" / f"{sha256}.zip"


@contextmanager
def s3_server(folder: Path, *, watched: bool = True) -> Iterator[S3]:
    """A server on a loopback port that it chooses itself. ``folder``: for its buckets and its log.

    ``watched``: it sees changes of its files by others, but may hang in requests at once for deeper folders.
    """
    bucket, log = folder / "buckets" / BUCKET, folder / "s3.log"
    bucket.mkdir(parents=True)
    command: list[str | Path] = [
        RCLONE,
        "serve",
        "s3",
        bucket.parent,
        "--addr",
        "127.0.0.1:0",
        "--auth-key",
        f"{KEY},{SECRET}",
    ]
    more: list[str | Path] = [*(["--dir-cache-time", "0s"] if watched else []), "--config", folder / "none.conf", "-vv"]
    with log.open("wb") as out:
        process = subprocess.Popen([*command, *more], stdout=out, stderr=out)
    try:
        there = psutil.Process(process.pid)
        until(lambda: process.poll() is not None or bool(listening([there])), "the S3 server listens", log.read_text)
        ((_, _, port),) = listening([there])
        yield S3(bucket, process, port)
    finally:
        process.terminate()
        process.wait(30)
