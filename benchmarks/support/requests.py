"""Requests that a Spark Connect server answers, counted in its log."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable

from benchmarks.support.flights import User
from retrofill_tools.stack.layout import SPARK, Layout

# A user's environment in which the server logs each request.
LOGS_REQUESTS = {
    "RETROFILL_SPARK_CONF": json.dumps(
        {"spark.connect.grpc.interceptor.classes": "org.apache.spark.sql.connect.service.LoggingInterceptor"}
    )
}
_REQUEST = re.compile(r"Received RPC request \S*/(\w+)", re.I)


def requests_of(user: User, work: Callable[[], object]) -> Counter[str]:
    """The requests during ``work``, by method."""
    log = Layout(user.home).log(SPARK)
    before = log.stat().st_size
    work()
    with log.open(errors="replace") as lines:
        lines.seek(before)
        return Counter(found[1] for line in lines if (found := _REQUEST.search(line)))
