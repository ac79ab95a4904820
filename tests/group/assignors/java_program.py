"""Kafka's own assignors in a Java process that answers line by line."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from asyncgroup.model import TopicPartition
from tests.java_programs import java_command
from tests.wire.kafka_files import kafka_jar

__all__ = ["JavaProgram", "jars_of_clients", "partitions_in"]

SOURCE = Path(__file__).with_name("Assignors.java")


class JavaProgram:
    """Runs `Assignors.java` for the `with` block. It reads groups and writes answers, each ending with the line `end`.

    `answers` is `eager`, `racks` or `cooperative`: what it reads and writes for each group.
    """

    def __init__(self, answers: str, jars: Iterable[Path]) -> None:
        path = os.pathsep.join(map(str, jars))
        self._command = [*java_command(SOURCE, path, log_level="off"), answers]

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate(timeout=30)

    def ask(self, lines: Iterable[str]) -> list[str]:
        """Return the lines of the answer, without the last one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n".join([*lines, "end"]) + "\n")
        self._process.stdin.flush()
        found: list[str] = []
        for line in self._process.stdout:
            if line == "end\n":
                return found
            found.append(line.rstrip("\n"))
        raise AssertionError(f"Java ended with {self._process.wait(30)} after {found}")


def partitions_in(words: Iterable[str]) -> list[TopicPartition]:
    """Return the partitions of a member in a plan; their order comes from Java's hash maps and has no meaning."""
    pairs = (word.split(":") for word in words)
    return sorted(TopicPartition(topic, int(number)) for topic, number in pairs)


def jars_of_clients() -> list[Path]:
    """Return the jars with Kafka's assignors; skip the test if they are not available."""
    clients = kafka_jar("kafka-clients")
    return [clients, *sorted(clients.parent.glob("slf4j-*.jar"))]
