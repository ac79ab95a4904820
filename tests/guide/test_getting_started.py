"""Getting started: both processes of the consumer get records of each way to write them."""

from __future__ import annotations

import re
import shlex

import pytest

from asyncgroup import Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cli.app import _parser
from asyncgroup.cli.produce import LineProducer
from tests.guide.pages import commands, snippet

PARTITIONS = 6
HALVES = {0: [0, 1, 2], 1: [3, 4, 5]}
"""The partitions of the two members."""


@pytest.fixture
def lines() -> tuple[list[bytes], list[str]]:
    """The lines that the page's shell command writes, and the arguments of `asyncgroup`."""
    (line,) = [
        line for page, line in commands() if page == "getting-started" and "| asyncgroup produce" in line
    ]
    printed, _, program = line.partition(" | asyncgroup ")
    text = shlex.split(printed)[1].encode().decode("unicode_escape")
    return [each.encode() for each in text.splitlines()], shlex.split(program)


def members_with_records(cluster: EmbeddedCluster) -> set[int]:
    return {
        member
        for record in cluster.records("greetings")
        for member, partitions in HALVES.items()
        if record.partition in partitions
    }


async def test_the_command_of_the_page_writes_for_both_processes(
    lines: tuple[list[bytes], list[str]],
) -> None:
    block, arguments = lines
    options = _parser().parse_args(arguments)
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic("greetings", PARTITIONS)
        async with Producer(cluster.bootstrap_servers) as producer:
            await LineProducer(options.key_separator).write(producer, options.topic, block)
        assert members_with_records(cluster) == {0, 1}


async def test_the_program_of_the_page_writes_for_both_processes() -> None:
    code = snippet("getting-started", "for number in range").replace("asyncio.run(main())", "")
    names: dict[str, object] = {"print": lambda *_: None}
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic("greetings", PARTITIONS)
        exec(code.replace("127.0.0.1:9092", cluster.bootstrap_servers), names)
        await names["main"]()  # type: ignore[operator]
        assert members_with_records(cluster) == {0, 1}


async def test_the_topic_of_the_page_has_these_partitions() -> None:
    (command,) = [line for page, line in commands() if page == "getting-started" and "broker" in line]
    assert re.search(r"--topic greetings:(\d+)", command) is not None
    (topic,) = _parser().parse_args(shlex.split(command)[1:]).topic
    assert (topic.name, topic.partitions) == ("greetings", PARTITIONS)
