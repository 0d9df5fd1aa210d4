"""Publishes a message whose header name is arbitrary bytes. Only librdkafka's C API can do this,
not the Python client.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import confluent_kafka

# rd_kafka_vtype_t from librdkafka's rdkafka.h
END, TOPIC, PARTITION, VALUE, KEY, FLAGS, HEADERS = 0, 1, 3, 4, 5, 7, 10
COPY = 2
PRODUCER = 0


def publish_with_header(servers: str, topic: str, partition: int, key: bytes, value: bytes, name: bytes) -> None:
    """Publish the message and wait until the broker has it."""
    (path,) = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*")
    library = ctypes.CDLL(str(path))
    for function in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(library, function).restype = ctypes.c_void_p
    error = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    assert library.rd_kafka_conf_set(conf, b"bootstrap.servers", servers.encode(), error, 512) == 0, error.value
    client = ctypes.c_void_p(library.rd_kafka_new(PRODUCER, conf, error, 512))
    headers = ctypes.c_void_p(library.rd_kafka_headers_new(ctypes.c_size_t(1)))
    library.rd_kafka_header_add(headers, name, ctypes.c_ssize_t(len(name)), b"x", ctypes.c_ssize_t(1))
    arguments: list[tuple[Any, ...]] = [
        (TOPIC, topic.encode()),
        (PARTITION, ctypes.c_int32(partition)),
        (KEY, key, ctypes.c_size_t(len(key))),
        (VALUE, value, ctypes.c_size_t(len(value))),
        (FLAGS, ctypes.c_int(COPY)),
        (HEADERS, headers),
        (END,),
    ]
    flat = [ctypes.c_int(one) if n == 0 else one for group in arguments for n, one in enumerate(group)]
    try:
        assert library.rd_kafka_producev(client, *flat) == 0
        assert library.rd_kafka_flush(client, 20_000) == 0
    finally:
        library.rd_kafka_destroy(client)
