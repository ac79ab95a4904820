"""Run Kafka's own command-line tools and small Java programs, in one JVM for all tests (`Tools.java`)."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import pytest

from asyncgroup.testing.apache_kafka.jars import kafka_jars
from tests.java_programs import java_command

__all__ = ["TOOLS", "JavaTools", "Output", "java_tools"]

LIMIT: Final = 60.0
"""Seconds that a tool may take."""

TOOLS: Final = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}
"""The main classes of the scripts in `bin/` of a Kafka distribution."""


class Output(NamedTuple):
    """The exit code of a tool and its output, including errors."""

    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        """The lines that are not blank."""
        return [line for line in self.text.splitlines() if line.strip()]

    def table(self) -> list[dict[str, str]]:
        """Parse a table with a line of headings; return its rows, by heading. Values must not contain blanks."""
        headings, *rows = [line.split() for line in self.lines]
        return [dict(zip(headings, row, strict=False)) for row in rows]


class JavaTools:
    """Context manager: the JVM. `run` blocks and may be called from several threads."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: dict[str, queue.SimpleQueue[Output]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        jars = kafka_jars()
        (tools,) = jars.glob("kafka-tools-4*.jar")
        path = os.pathsep.join(str(jar) for jar in sorted(jars.glob("*.jar")) if jar != tools)
        self._process = subprocess.Popen(
            [*java_command(Path(__file__).with_name("Tools.java"), path, options=["-Xmx256m"]), str(tools)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name="java-tools")
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, code, text = line.rstrip("\n").split(" ")
            self._waiting.pop(number).put(Output(int(code), base64.b64decode(text).decode()))
        for answer in self._waiting.values():
            answer.put(Output(-1, "the JVM has ended"))

    def run(self, tool: str | Path, *arguments: str, typed: str = "", limit: float = LIMIT) -> Output:
        """Run one of `TOOLS`, or a Java program in one file. `typed` is its standard input, `limit` is in seconds.

        Raises TimeoutError after the limit, with the last lines of the output and what the JVM's threads were doing.
        """
        program = TOOLS[tool] if isinstance(tool, str) else str(tool)
        number, answer = self._send(
            *(base64.b64encode(text.encode()).decode() for text in (program, typed, *arguments))
        )
        try:
            return answer.get(timeout=limit)
        except queue.Empty:
            _, description = self._send(number)
            what = f"{tool} {' '.join(arguments)} took longer than {limit:g} s"
            # not a note: asyncio copies a TimeoutError of a thread without its notes
            raise TimeoutError(f"{what}\n{description.get(timeout=LIMIT).text}") from None

    def _send(self, *fields: str) -> tuple[str, queue.SimpleQueue[Output]]:
        """Write a line; return its number, and the queue that will get the result."""
        number, answer = str(next(self._numbers)), queue.SimpleQueue[Output]()
        self._waiting[number] = answer
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(" ".join([number, *fields]) + "\n")
            self._process.stdin.flush()
        return number, answer

    async def __call__(
        self, tool: str | Path, *arguments: str, typed: str = "", limit: float = LIMIT
    ) -> Output:
        """Call `run` in a thread."""
        return await asyncio.to_thread(self.run, tool, *arguments, typed=typed, limit=limit)


@pytest.fixture(scope="session")
def java_tools(kafka_at_hand: None) -> Iterator[JavaTools]:
    """Kafka's own command-line tools, in one JVM for all tests; `tests/conftest.py` imports this fixture."""
    with JavaTools() as tools:
        yield tools
