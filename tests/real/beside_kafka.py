"""Our administrative commands and Kafka's own tools on one cluster: what the tests of both have in common."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from asyncgroup import ConsumerConfig, ConsumerGroup, Producer
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.cli.admin_commands import Commands
from tests.interop.java_tools import JavaTools, Output
from tests.real.support import RunningKafka
from tests.stories.holding import holding

__all__ = [
    "BORN",
    "Beside",
    "beside",
    "beside_3",
    "beside_39",
    "beside_breakable",
    "filled",
    "member",
    "unique",
]

BORN = 1_700_000_000_000


class Beside:
    """Our commands and Kafka's tools on one cluster."""

    def __init__(self, servers: str, tools: JavaTools, capture: pytest.CaptureFixture[str]) -> None:
        self.servers = servers
        self.ours = Commands(servers, capture)
        self._tools = tools

    async def tool(self, tool: str, *arguments: str) -> Output:
        """Run one of Kafka's tools."""
        # `kafka-transactions` and others take it before their own subcommand, `kafka-cluster` after it
        servers = ("--bootstrap-server", self.servers)
        given = (*arguments, *servers) if tool == "kafka-cluster" else (*servers, *arguments)
        return await self._tools(tool, *given)

    async def lines(self, tool: str, *arguments: str) -> list[str]:
        """Return the lines of one of Kafka's tools, which must succeed."""
        output = await self.tool(tool, *arguments)
        assert output.code == 0, output.text
        return output.lines

    async def table(self, *arguments: str) -> list[dict[str, str]]:
        """Return the rows of `kafka-consumer-groups`, by heading; sentences before them are left out."""
        lines = await self.lines("kafka-consumer-groups", *arguments)
        table = itertools.dropwhile(lambda line: not line.startswith("GROUP "), lines)
        headings, *rows = [line.split() for line in table]
        return [dict(zip(headings, row, strict=True)) for row in rows]

    async def transactions(self, *arguments: str) -> list[dict[str, str]]:
        """Return the rows of `kafka-transactions`, by heading; an empty cell is the empty string."""
        headings, *rows = [
            [cell.strip() for cell in line.split("\t")[:-1]]  # each cell has a tab after it
            for line in await self.lines("kafka-transactions", *arguments)
        ]
        return [dict(zip(headings, row, strict=True)) for row in rows]

    async def columns(self, *arguments: str) -> list[dict[str, str]]:
        """Return the rows of our table, by heading; a table without rows is not printed."""
        headings, *rows = (await self.ours.ok(*arguments)).table() or [[]]
        return [dict(zip(headings, row, strict=True)) for row in rows]

    async def described(self, topic: str) -> tuple[str, list[dict[str, str]]]:
        """Return what `kafka-topics` prints of a topic: the first line, and the partitions with our headings and words."""
        head, *lines = await self.lines("kafka-topics", "--describe", "--topic", topic)
        names = {
            "Topic": "TOPIC",
            "Partition": "PARTITION",
            "Leader": "LEADER",
            "Replicas": "REPLICAS",
            "Isr": "ISR",
            "Elr": "ELR",
            "LastKnownElr": "LAST-KNOWN-ELR",
        }
        rows = [dict(cell.split(": ", 1) for cell in line.strip("\n").split("\t") if cell) for line in lines]
        absent = ("", "none", "N/A")  # no such replica, no leader, and a Kafka that does not know
        return head, [
            {title: "-" if row[name] in absent else row[name] for name, title in names.items()}
            for row in rows
        ]

    async def configs(self, kind: str, name: str, *options: str) -> dict[str, tuple[str | None, bool]]:
        """Return what `kafka-configs --describe` prints: the value of each configuration, and whether it is a secret."""
        entity = ("--entity-type", kind, "--entity-name", name)
        lines = (await self.lines("kafka-configs", "--describe", *entity, *options))[1:]
        found = re.findall(r"^ *(\S+?)=(.*?) sensitive=(\w+) synonyms", "\n".join(lines), re.MULTILINE)
        assert len(found) == len(lines)
        return {
            config: (None if value == "null" and kind == "brokers" else value, sensitive == "true")
            for config, value, sensitive in found
        }

    async def both_refuse(
        self,
        ours: Sequence[str],
        theirs: Sequence[str],
        *,
        error: str,
        words: str,
        their_words: str | None = None,
    ) -> None:
        """Run our command, and Kafka's tool with `theirs`: both must fail with the same words of the broker.

        `error` is the broker's name of the error in our row or line. `their_words` are those of a tool that checks its arguments
        itself, or that knows only the code. The exit code of `kafka-consumer-groups` and others is 0 nevertheless; ours is 1,
        or 2, without a row, for a value that Admin refuses.
        """
        printed = await self.ours(*ours, "--json")
        is_usage_error = not printed.out and "is not allowed" in printed.err
        assert printed.code == (2 if is_usage_error else 1), printed
        assert error in printed.out + printed.err, printed
        assert words in printed.err, printed.err
        assert {row["error"] for row in printed.rows if "error" in row} <= {error, None}
        output = await self.tool(*theirs)
        assert (words if their_words is None else their_words) in output.text, output.text


@pytest.fixture
def beside(apache_kafka: RunningKafka, java_tools: JavaTools, capsys: pytest.CaptureFixture[str]) -> Beside:
    return Beside(apache_kafka.bootstrap_servers, java_tools, capsys)


@pytest.fixture
def beside_3(
    apache_kafka_3: ApacheKafka, java_tools: JavaTools, capsys: pytest.CaptureFixture[str]
) -> Beside:
    return Beside(apache_kafka_3.bootstrap_servers, java_tools, capsys)


@pytest.fixture
def beside_breakable(
    kafka_to_break: ApacheKafka, java_tools: JavaTools, capsys: pytest.CaptureFixture[str]
) -> Beside:
    """For what changes the whole cluster."""
    return Beside(kafka_to_break.bootstrap_servers, java_tools, capsys)


@pytest.fixture
def beside_39(kafka_39: ApacheKafka, java_tools: JavaTools, capsys: pytest.CaptureFixture[str]) -> Beside:
    """The tools are those of the newest Kafka."""
    return Beside(kafka_39.bootstrap_servers, java_tools, capsys)


def unique(name: str) -> str:
    return f"{name}-{uuid4().hex[:8]}"


async def filled(beside: Beside) -> str:
    """A topic of three partitions with 10, 4 and no records, a second apart; the first three are deleted."""
    topic = unique("beside")
    await beside.ours.ok("topics", "create", topic, "-p", "3", "-r", "1", "--set", "retention.ms=-1")
    async with Producer(beside.servers) as producer:
        for partition, count in ((0, 10), (1, 4)):
            for number in range(count):
                await producer.send(topic, b"x", partition=partition, timestamp=BORN + 1000 * number)
    await beside.ours.ok("topics", "delete-records", f"{topic}:0", "--before", "3")
    return topic


@asynccontextmanager
async def member(beside: Beside, group: str, topic: str, protocol: str, **config: Any) -> AsyncIterator[None]:
    """A member that has the three partitions and reads nothing."""
    made = ConsumerConfig(client_id="beside", group_protocol=protocol, **config)  # type: ignore[arg-type]
    async with ConsumerGroup(beside.servers, group, made) as running, holding(running, topic, 3):
        yield
