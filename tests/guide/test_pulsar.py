"""The page about Pulsar: its snippets on a real Apache Pulsar, and its tables against the code."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from asyncgroup import Tls
from asyncgroup.pulsar import (
    PulsarClient,
    PulsarConfig,
    PulsarConsumerConfig,
    PulsarMessage,
    PulsarProducer,
    PulsarProducerConfig,
)
from asyncgroup.pulsar_broker import PulsarOptions
from asyncgroup.testing.pulsar_fault_options import PulsarFaultOptions
from asyncgroup.workqueue import Mode, PulsarSource
from asyncgroup.workqueue.pulsar_engine.copies import PulsarCopyFormat
from tests.apache_pulsar import RunningPulsar
from tests.guide.pages import page, snippet
from tests.guide.pulsar_names import PYTHON_ARGUMENTS, PYTHON_CLIENT, PYTHON_METHODS, PYTHON_PRODUCER
from tests.guide.test_work_queues import rows_of, running, until
from tests.pulsar.consumer.support import entry_of, metadata, pushed

# --- snippets ---------------------------------------------------------------------------------------------------------


def defined(text: str, pulsar: RunningPulsar | None = None, topic: str = "orders", **names: Any) -> Any:
    """Execute a snippet without its last line, with this topic; return its names."""
    code = snippet("pulsar", text).replace("asyncio.run(main())", "").replace('"orders"', f'"{topic}"')
    if pulsar is not None:
        code = code.replace("pulsar://127.0.0.1:6650", pulsar.service_url)
    exec(compile(code, "snippet", "exec"), names)
    return names


@contextlib.asynccontextmanager
async def producing(pulsar: RunningPulsar, topic: str) -> AsyncIterator[PulsarProducer]:
    async with PulsarProducer(pulsar.service_url, topic) as producer:
        yield producer


def new_topic() -> str:
    return f"orders-{uuid4().hex[:8]}"


def message_of(topic: str = "persistent://public/default/orders") -> PulsarMessage:
    """Return a message without properties."""
    return PulsarMessage(topic, entry_of(pushed(4), metadata(), b"value"), 0)


async def test_a_token_is_read_for_each_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[PulsarConfig] = []
    monkeypatch.setattr(
        "asyncgroup.pulsar.PulsarClient", lambda url, config: (url, configs.append(config))[0]
    )
    token = tmp_path / "token"
    token.write_text("first\n")
    names = defined("def connect")
    assert names["connect"]("pulsar+ssl://pulsar:6651", "ca.pem", token) == "pulsar+ssl://pulsar:6651"
    (config,) = configs
    assert config.tls == Tls(ca_file="ca.pem")
    assert config.authentication is not None
    assert await config.authentication.credential() == b"first"
    token.write_text("second\n")
    assert await config.authentication.credential() == b"second"


@pytest.mark.real
async def test_messages_are_produced_and_consumed(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    printed: list[Any] = []
    producer = defined("PulsarProducerConfig(compression", apache_pulsar, topic, print=printed.append)
    await producer["main"]()
    (first,) = printed
    found: list[tuple[Any, ...]] = []
    consumer = defined('type="failover"', apache_pulsar, topic, print=lambda *line: found.append(line))
    async with running(consumer["main"]()):
        await until(lambda: len(found) == 1_001)
    assert found[0] == (first, b"eggs", b"one dozen")
    assert found[-1][1:] == (b"customer-5", b"order 999")


@pytest.mark.real
@pytest.mark.full
async def test_the_reader(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    async with producing(apache_pulsar, topic) as producer:
        ids = [await producer.send(value) for value in (b"a", b"b")]
    lines: list[tuple[Any, ...]] = []
    names = defined("client.reader(", apache_pulsar, topic, print=lambda *line: lines.append(line))
    await names["main"]()
    assert lines == [(ids[0], b"a"), (ids[1], b"b")]


async def shouts(text: str, apache_pulsar: RunningPulsar) -> None:
    """Check that a snippet writes the messages of a topic in capitals to another one."""
    topic = new_topic()
    names = defined(text, apache_pulsar, topic)
    async with PulsarClient(apache_pulsar.service_url) as client, client.subscribe("copies", topic) as reader:
        async with running(names["main"]()), producing(apache_pulsar, topic) as producer, asyncio.timeout(60):
            while not reader.queued:  # the snippet's subscription begins with what is sent after it
                await producer.send(topic.encode())
                await asyncio.sleep(0.2)
            assert (await reader.receive()).value == topic.upper().encode()


@pytest.mark.real
@pytest.mark.full
async def test_transactions(apache_pulsar: RunningPulsar) -> None:
    await shouts("client.transaction(timeout=30)", apache_pulsar)


@pytest.mark.real
@pytest.mark.full
async def test_from_topic_to_topic(apache_pulsar: RunningPulsar) -> None:
    await shouts("def shout(batch", apache_pulsar)


@pytest.mark.real
@pytest.mark.full
async def test_the_table_view(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    lines: list[tuple[Any, ...]] = []
    text = snippet("pulsar", "client.table_view(").replace('"prices"', f'"{topic}"')
    code = text.replace("asyncio.run(main())", "").replace(
        "pulsar://127.0.0.1:6650", apache_pulsar.service_url
    )
    names: dict[str, Any] = {"print": lambda *line: lines.append(line)}
    exec(compile(code, "snippet", "exec"), names)
    async with producing(apache_pulsar, topic) as producer:
        await producer.send(b"3", key="eggs")
        async with running(names["main"]()):
            await until(lambda: lines == [(1, 3)])
            await producer.send(b"4", key="eggs")
            await producer.send(None, key="eggs")
            await until(lambda: lines[-1:] == [("eggs", None)])


@pytest.mark.real
@pytest.mark.full
async def test_the_queue(apache_pulsar: RunningPulsar) -> None:
    """A message that fails is delivered again after a second, and those of its key wait for it."""
    topic = new_topic()
    lines: list[tuple[Any, ...]] = []

    def note(*line: Any) -> None:
        lines.append(line)
        if line == (1, b"k", b"a"):
            raise ValueError("not yet")

    async with producing(apache_pulsar, topic) as producer:
        for value in (b"a", b"b"):
            await producer.send(value, key="k")
    names = defined("concurrency=200", apache_pulsar, topic, print=note)
    async with running(names["main"]()):
        await until(lambda: len(lines) == 3)
    assert lines == [(1, b"k", b"a"), (2, b"k", b"a"), (1, b"k", b"b")]


@pytest.mark.real
@pytest.mark.full
async def test_a_source_with_arguments(apache_pulsar: RunningPulsar) -> None:
    topic, other = new_topic(), new_topic()
    code = snippet("pulsar", "PulsarSource(client").replace("orders", topic).replace("returns", other)
    names: dict[str, Any] = {}
    exec(code, names)
    async with PulsarClient(apache_pulsar.service_url) as client:
        for each in (topic, other):
            async with PulsarProducer(client, each) as producer:
                await producer.send(each.encode())
        async with names["refunds"](client) as queue:
            values = []
            for _ in range(2):
                delivery = await queue.receive()
                values.append(delivery.value)
                await delivery.ack()
    assert sorted(values) == sorted([topic.encode(), other.encode()])


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [PYTHON_CLIENT, PYTHON_PRODUCER, PYTHON_ARGUMENTS, PYTHON_METHODS])
def test_every_name_of_pulsars_python_client_has_a_row(names: str) -> None:
    table = page("pulsar").partition("\n## From pulsar-client\n")[2]
    named = set(re.findall(r"\w+", " ".join(first for first, _ in rows_of(table))))
    assert not set(names.split()) - named


def test_arguments_in_the_tables_exist() -> None:
    table = page("pulsar").partition("\n## From pulsar-client\n")[2]
    stated = {name for _, second in rows_of(table) for name in re.findall(r"`(\w+)=[^`(]*`", second)}
    known = {
        each.name
        for cls in (PulsarConfig, PulsarProducerConfig, PulsarConsumerConfig)
        for each in fields(cls)
    }
    of_send = set(inspect.signature(PulsarProducer.send).parameters)
    of_queue = {"ack_timeout", "dead_letter"}
    assert stated
    assert stated <= known | of_send | of_queue | {"type"} | {"tls"}


def test_the_arguments_of_a_source_are_those_of_the_code() -> None:
    text = page("pulsar").partition("| argument | default | meaning |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \|", text, re.MULTILINE)
    own = {each.name: each.default for each in fields(PulsarSource) if each.kw_only}
    assert dict(rows) == {name: repr(default) for name, default in own.items()}


def test_the_properties_of_copies_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| (`.*?) \| (yes|no) \| (yes|no) \| ", page("pulsar"), re.MULTILINE)
    stated = [
        {name for cell, *columns in rows if columns[n] == "yes" for name in re.findall(r"`([^`]+)`", cell)}
        for n in range(2)
    ]
    message, copies = message_of(), PulsarCopyFormat("billing")
    retry = copies.retry_copy(message, "r", 1, 5.0, [])
    dead = copies.dead_letter_copy(message, "d", 2, "wrong")
    assert [set(retry.properties), set(dead.properties)] == stated


def test_the_modes_are_those_of_the_code() -> None:
    assert set(re.findall(r"^\| `Mode\.(\w+)`", page("pulsar"), re.MULTILINE)) == {each.name for each in Mode}


# --- the embedded one -------------------------------------------------------------------------------------------------


def first_cells_of(heading: str) -> set[str]:
    """Return what the first cells of the tables below a heading name in the page of the embedded Pulsar."""
    section = page("testing-kit-pulsar").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}


def test_every_option_of_the_embedded_pulsar_has_a_row() -> None:
    assert first_cells_of("Options") == {field.name for field in fields(PulsarOptions)}


def test_every_option_of_a_fault_has_a_row() -> None:
    options = {"api", *PulsarFaultOptions.__annotations__} - {"optional"}
    assert options <= first_cells_of("Faults")
    assert "`optional`" in page("testing-kit-pulsar")
