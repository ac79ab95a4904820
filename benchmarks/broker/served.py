"""A broker in a process of its own: `python -m benchmarks.broker.served NAME SETTINGS` (a JSON object).

`topics` of the settings are names to numbers of partitions. It prints its bootstrap servers as JSON, then for every
line that it reads the seconds of CPU that it has used, and ends with its input. kfake's program does the same.
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

from benchmarks.broker.descriptors import allow_many

__all__ = ["main", "serve_asyncgroup", "serve_librdkafka"]

PRODUCER: Final = 0
"""librdkafka's `RD_KAFKA_PRODUCER`: the mock cluster has to have a client to belong to."""
ERROR_BYTES: Final = 512


def main(name: str, settings_json: str) -> None:
    """Serve until the input ends."""
    allow_many()
    topics: dict[str, int] = json.loads(settings_json)["topics"]
    if name == "asyncgroup":
        asyncio.run(serve_asyncgroup(topics))
    else:
        serve_librdkafka(topics)


def _ready(bootstrap_servers: str) -> None:
    print(json.dumps({"bootstrap_servers": bootstrap_servers}), flush=True)


def _answer_questions() -> None:
    """Tell the CPU time for every line, until there are no more."""
    while sys.stdin.readline():
        print(json.dumps({"cpu_seconds": time.process_time()}), flush=True)


async def serve_asyncgroup(topics: Mapping[str, int]) -> None:
    """Ours, with all its defaults."""
    from asyncgroup.broker import EmbeddedCluster

    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def answer() -> None:
        _answer_questions()
        loop.call_soon_threadsafe(ended.set)

    async with EmbeddedCluster() as cluster:
        for name, partitions in topics.items():
            cluster.create_topic(name, partitions)
        _ready(cluster.bootstrap_servers)
        # a thread, as pipes, files and terminals can all be read in one; it ends with the input
        threading.Thread(target=answer, name="questions", daemon=True).start()
        await ended.wait()


def serve_librdkafka(topics: Mapping[str, int]) -> None:
    """librdkafka's mock cluster (`rdkafka_mock.h`), through the library that confluent-kafka brings.

    With `test.mock.num.brokers` a client makes itself one and keeps the address for itself, so it's made by hand. It holds
    5 MiB of a partition and drops what is older.
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
    _answer_questions()
    os._exit(0)  # its threads end with the process; there is nothing to keep


def _mock_functions() -> Any:
    from confluent_kafka import cimpl

    library = ctypes.CDLL(cimpl.__file__)  # a name is looked up in what the module depends on, too
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
