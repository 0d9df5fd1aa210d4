"""A real object store on loopback, for Hadoop's S3A, which needs more of S3 than ``rclone serve s3`` has: SeaweedFS."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.session

from retrofill_tools.stack.maven import Artifact
from retrofill_tools.stack.ports import held_port
from tests.support.installation import until
from tests.support.maven import jar, jars

HADOOP_S3 = Artifact("org.apache.hadoop", "hadoop-aws", "3.4.2", "1 MB")
AMAZON_S3 = Artifact("software.amazon.awssdk", "s3-transfer-manager", "2.29.52", "14 MB", whole=True)
WEED = Path(sys.executable).with_name("weed")
KEY, SECRET = "AKIAHUNTER3", "hunter3-hunter3-hunter3"
BUCKET, REGION = "lake", "us-east-1"
# All that it listens on.
PORTS = (
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"),
    *("s3.port", "s3.port.grpc"),
)


@dataclass(frozen=True)
class Seaweed:
    """``port``: of S3."""

    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def s3a(self) -> dict[str, str]:
        """Spark's settings for ``s3a://`` addresses."""
        options = {
            "endpoint": self.endpoint,
            "endpoint.region": REGION,
            "path.style.access": "true",
            "access.key": KEY,
            "secret.key": SECRET,
        }
        return {f"spark.hadoop.fs.s3a.{name}": value for name, value in options.items()}

    def warehouse(self) -> dict[str, str]:
        """Settings of a Spark server whose tables are in it."""
        libraries = ",".join(map(str, [jar(HADOOP_S3), *jars(AMAZON_S3)]))
        return {**self.s3a(), "spark.jars": libraries, "spark.sql.warehouse.dir": f"s3a://{BUCKET}/warehouse"}

    def client(self) -> Any:
        """A client of botocore's."""
        login = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": REGION}
        return botocore.session.get_session().create_client("s3", endpoint_url=self.endpoint, **login)

    def objects(self, prefix: str) -> list[str]:
        """The names of the objects that begin with this, without it."""
        found = self.client().list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        return [each["Key"].removeprefix(prefix) for each in found.get("Contents", [])]

    def files(self) -> dict[str, object]:
        """All objects, by their names: another value when somebody writes one again."""
        found = self.client().list_objects_v2(Bucket=BUCKET)
        return {each["Key"]: (each["ETag"], each["LastModified"]) for each in found.get("Contents", [])}


@contextmanager
def seaweed(folder: Path) -> Iterator[Seaweed]:
    """A store with one bucket. ``folder``: for its files and its log."""
    data, log, users = folder / "weed", folder / "weed.log", folder / "weed.json"
    data.mkdir(parents=True)
    credentials = [{"accessKey": KEY, "secretKey": SECRET}]
    users.write_text(json.dumps({"identities": [{"name": "t", "credentials": credentials, "actions": ["Admin"]}]}))
    with ExitStack() as holding:
        ports = {name: holding.enter_context(held_port()) for name in PORTS}
        command = [
            *(WEED, "server", "-dir", data, "-s3.config", users),
            *[
                "-ip",
                "127.0.0.1",
                "-ip.bind",
                "127.0.0.1",
                "-filer",
                "-s3",
                "-s3.port.iceberg",
                "0",
                "-s3.port.lance",
                "0",
            ],
            *[
                "-master.volumeSizeLimitMB",
                "64",
                "-volume.max",
                "50",
                "-volume.preStopSeconds",
                "0",
                "-master.telemetry=false",
            ],
            *(each for name, port in ports.items() for each in (f"-{name}", str(port))),
        ]
        with log.open("wb") as out:
            process = subprocess.Popen(list(map(str, command)), stdout=out, stderr=out)
        try:
            made = Seaweed(ports["s3.port"])
            until(lambda: process.poll() is not None or _has_bucket(made), "the store answers", log.read_text)
            assert process.poll() is None, log.read_text()
            holding.close()
            yield made
        finally:
            process.terminate()
            process.wait(30)


def _has_bucket(store: Seaweed) -> bool:
    """Create the bucket, once the store can."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", store.port)):
            return False
    client = store.client()
    try:
        client.create_bucket(Bucket=BUCKET)
        client.put_object(Bucket=BUCKET, Key="ready", Body=b"")
    except Exception:  # noqa: BLE001 - its parts start one after the other
        return False
    return True
