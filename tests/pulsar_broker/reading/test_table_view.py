"""PulsarTableView on the embedded Pulsar, in virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from asyncgroup.errors import ClosedError, ConfigError, UsageError
from asyncgroup.model import clock_of_loop
from asyncgroup.pulsar import PulsarClient, PulsarProducer, PulsarProducerConfig, PulsarTableView
from asyncgroup.pulsar.wire.topic_name import TopicName
from tests.pulsar_broker.internals import runtime_of
from tests.pulsar_broker.support import embedded

pytestmark = pytest.mark.virtual(max_virtual_time=3600)


async def put(client: PulsarClient, batching: bool = True, **values: bytes | None) -> None:
    config = PulsarProducerConfig(batching=batching)
    async with PulsarProducer(client, "t", config, clock=clock_of_loop()) as producer:
        await asyncio.gather(*(producer.send(value, key=key) for key, value in values.items()))


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("partitions", [0, 3])
async def test_the_newest_value_of_each_key(partitions: int, batching: bool) -> None:
    async with embedded(topics={"t": partitions}) as (_, client):
        await put(client, batching, a=b"1", b=b"1", c=b"1", d=b"1")
        await put(client, batching, a=b"2", b=None, c=b"")
        async with client.table_view("t") as view:
            assert view == {"a": b"2", "d": b"1"}
            assert (len(view), view["a"], view.get("b"), "c" in view) == (2, b"2", None, False)
            await put(client, batching, a=b"3", d=None, e=b"1")
            await view.refresh()
            assert dict(view) == {"a": b"3", "e": b"1"}
        assert view["a"] == b"3", "what was read stays"
        with pytest.raises(ClosedError):
            await view.refresh()


async def test_an_empty_topic_and_messages_without_a_key() -> None:
    async with embedded(topics="t") as (_, client), client.table_view("t") as view:
        assert not view
        async with client.producer("t") as producer:
            await producer.send(b"x")
        await view.refresh()
        assert not view


async def test_changes_come_once_with_the_newest_value() -> None:
    async with embedded(topics="t") as (_, client):
        await put(client, a=b"1")
        async with client.table_view("t") as view:
            news, everything = view.changes(), view.changes(with_current=True)
            waiting = asyncio.create_task(anext(news))
            await asyncio.sleep(1)
            await put(client, b=b"1")
            assert await waiting == ("b", b"1")
            for value in (b"2", b"3", None):
                await put(client, a=value)
            await put(client, c=b"1")
            await view.refresh()
            assert [await anext(news) for _ in range(2)] == [("a", None), ("c", b"1")]
        assert [each async for each in news] == []
        assert [each async for each in everything] == [("b", b"1"), ("a", None), ("c", b"1")]


async def test_listeners(caplog: pytest.LogCaptureFixture) -> None:
    async with embedded(topics="t") as (_, client):
        await put(client, a=b"1")
        found: list[tuple[str, bytes | None]] = []
        later: list[str] = []

        def wrong(key: str, value: bytes | None) -> None:
            raise ZeroDivisionError(key)

        async with client.table_view("t") as view:
            view.listen(wrong)
            stop = view.for_each_and_listen(lambda key, value: found.append((key, value)))
            view.listen(lambda key, _: later.append(key))
            await put(client, b=b"2", a=None)
            await view.refresh()
            stop()
            await put(client, c=b"3")
            await view.refresh()
        assert found == [("a", b"1"), ("b", b"2"), ("a", None)]
        assert later == ["b", "a", "c"]
        assert "a listener failed" in caplog.text


async def test_iteration_while_it_changes() -> None:
    async with embedded(topics="t") as (_, client):
        await put(client, **{f"k{number}": b"1" for number in range(5)})
        async with client.table_view("t") as view:
            seen = []
            for key, value in view.items():
                seen.append((key, value))
                await put(client, **{key: None, f"new-{key}": b"2"})
                await view.refresh()
            assert seen == [(f"k{number}", b"1") for number in range(5)]
            assert sorted(view) == [f"new-k{number}" for number in range(5)]


async def test_values_that_cannot_be_decoded_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with embedded(topics="t") as (_, client):
        await put(client, a=b'{"price": 1}', b=b"[]")
        async with client.table_view("t", json.loads) as view:
            assert view == {"a": {"price": 1}, "b": []}
            await put(client, a=b"{", c=b"3")
            await view.refresh()
            assert view == {"b": [], "c": 3}
            assert list(view.errors()) == ["a"]
            assert "the value of key a cannot be decoded" in caplog.text
            await put(client, a=b"4")
            await view.refresh()
            assert (view["a"], view.errors()) == (4, {})


async def test_it_follows_through_lost_connections_and_new_partitions() -> None:
    async with embedded(topics={"t": 2}) as (pulsar, client), client.table_view("t") as view:
        for number in range(10):
            await put(client, **{f"k{number}": b"%d" % number})
            for node in runtime_of(pulsar).nodes.values():
                node.cut()
            await asyncio.sleep(2)
        runtime_of(pulsar).namespaces.add_partitions(TopicName.parse("t"), 8)
        await asyncio.sleep(70)
        await put(client, **{f"n{number}": b"%d" % number for number in range(20)})
        await view.refresh()
        assert view == {f"k{number}": b"%d" % number for number in range(10)} | {
            f"n{number}": b"%d" % number for number in range(20)
        }


async def test_its_last_messages_may_be_gone() -> None:
    async with embedded(topics="t") as (pulsar, client), client.table_view("t") as view:
        await put(client, a=b"1")
        waiting = asyncio.create_task(view.refresh())
        await waiting
        pulsar.delete_topic("t")
        await asyncio.sleep(5)
        await put(client, b=b"1")
        await view.refresh()
        assert view == {"a": b"1", "b": b"1"}


async def test_a_last_message_that_never_comes_delays_no_refresh() -> None:
    def later(answer: Any) -> None:
        answer.last_message_id.entry_id += 5

    async with embedded(topics="t") as (pulsar, client), client.table_view("t") as view:
        await put(client, a=b"1")
        pulsar.faults.on("GetLastMessageId").mutate(later)
        async with asyncio.timeout(2):
            await view.refresh()
        assert view == {"a": b"1"}


async def test_misuse() -> None:
    async with embedded(topics="t") as (_, client):
        with pytest.raises(ConfigError, match="a function of bytes"):
            client.table_view("t", 7)  # type: ignore[call-overload]
        view: PulsarTableView[Any] = client.table_view("t")
        with pytest.raises(UsageError, match="it is not open"):
            await view.refresh()
        async with view:
            with pytest.raises(ConfigError, match="a function of a key"):
                view.listen("x")  # type: ignore[arg-type]
        assert isinstance(view.error, ClosedError)
