"""A broker in a separate process: `python -m benchmarks.broker.server_process NAME SETTINGS` (a JSON object).

`topics` in the settings maps names to numbers of partitions. The process prints its bootstrap servers as JSON; for
every line that it reads it prints the CPU seconds it has used; it ends with its standard input. kfake's program does
the same.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.broker.file_limit import raise_file_limit

__all__ = ["main", "serve_asyncgroup", "serve_librdkafka"]

PRODUCER: Final = 0
"""librdkafka's `RD_KAFKA_PRODUCER`: the mock cluster must belong to a client."""
ERROR_BYTES: Final = 512


def main(name: str, settings_json: str) -> None:
    """Serve until the standard input ends."""
    raise_file_limit()
    topics: dict[str, int] = json.loads(settings_json)["topics"]
    if name == "asyncgroup":
        asyncio.run(serve_asyncgroup(topics))
    else:
        serve_librdkafka(topics)


def _ready(bootstrap_servers: str) -> None:
    print(json.dumps({"bootstrap_servers": bootstrap_servers}), flush=True)


def _report_cpu() -> None:
    """Print the CPU time for every line of the standard input, until it ends."""
    while sys.stdin.readline():
        print(json.dumps({"cpu_seconds": time.process_time()}), flush=True)


async def serve_asyncgroup(topics: Mapping[str, int]) -> None:
    """Serve the embedded broker with its default settings."""
    from asyncgroup.broker import EmbeddedCluster

    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def answer() -> None:
        _report_cpu()
        loop.call_soon_threadsafe(ended.set)

    async with EmbeddedCluster() as cluster:
        for name, partitions in topics.items():
            cluster.create_topic(name, partitions)
        _ready(cluster.bootstrap_servers)
        # a thread can read pipes, files and terminals alike; it ends with the standard input
        threading.Thread(target=answer, name="CPU time", daemon=True).start()
        await ended.wait()


def serve_librdkafka(topics: Mapping[str, int]) -> None:
    """Serve librdkafka's mock cluster (`rdkafka_mock.h`), from the library that is part of confluent-kafka.

    A client with `test.mock.num.brokers` creates a mock cluster but does not expose its address, so the C functions are
    called directly. The mock keeps 5 MiB of each partition and drops older records.
    """
    mock, text = _mock_functions(), ctypes.create_string_buffer(ERROR_BYTES)
    client = mock.rd_kafka_new(PRODUCER, mock.rd_kafka_conf_new(), text, ERROR_BYTES)
    if not client:
        raise RuntimeError(text.value.decode())
    cluster = mock.rd_kafka_mock_cluster_new(client, 1)
    for name, partitions in topics.items():
        if code := mock.rd_kafka_mock_topic_create(cluster, name.encode(), partitions, 1):
            raise RuntimeError(f"topic {name}: error {code}")
    _ready(mock.rd_kafka_mock_cluster_bootstraps(cluster).decode())
    _report_cpu()
    os._exit(0)  # ends the mock's threads; there is nothing to save


def _mock_functions() -> Any:
    from confluent_kafka import cimpl

    library = ctypes.CDLL(
        cimpl.__file__
    )  # symbols are also looked up in the libraries that the module depends on
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    signatures: tuple[tuple[str, Any, list[Any]], ...] = (
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_new", pointer, [number, pointer, text, ctypes.c_size_t]),
        ("rd_kafka_mock_cluster_new", pointer, [pointer, number]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_topic_create", number, [pointer, text, number, number]),
    )
    for name, result, arguments in signatures:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


if __name__ == "__main__":
    main(*sys.argv[1:])
