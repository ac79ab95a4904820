"""Admin, topics by pages (KIP-966): wide topics, changes between two pages, brokers without the request or with a wrong answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import pytest

from asyncgroup import BrokerError, ErrorCode
from asyncgroup.admin import Admin, TopicDescription
from asyncgroup.admin.topics import describe_topics
from asyncgroup.cluster.requests.results import IncompleteResponse, Results
from asyncgroup.cluster.requests.topic_pages import TopicPages
from asyncgroup.errors import ClosedError, NoBrokersError, RequestTimedOut
from asyncgroup.wire import messages as m
from tests.scenario.brokers.test_old_brokers import KAFKA_2_8, offer
from tests.stories.virtual import HOST, VirtualEnvironment

API = "DescribeTopicPartitions"
Response = m.DescribeTopicPartitionsResponse
Topic = Response.DescribeTopicPartitionsResponseTopic
Partition = Response.DescribeTopicPartitionsResponsePartition


async def in_pages(admin: Admin, names: Iterable[str], page_size: int) -> Results[str, TopicDescription]:
    return await describe_topics(admin._client, names, admin._budget(), page_size=page_size)


def numbers(topic: TopicDescription) -> list[int]:
    return [part.partition for part in topic.partitions]


def pages_of(env: VirtualEnvironment) -> list[tuple[list[str], str | None]]:
    """Return what each request asked for: the topics, and the cursor."""
    asked = []
    for exchange in env.cluster.history.of(API):
        cursor = exchange.request.cursor
        asked.append(
            (
                [topic.name for topic in exchange.request.topics],
                None if cursor is None else f"{cursor.topic_name}-{cursor.partition_index}",
            )
        )
    return asked


async def test_a_topic_that_is_wider_than_a_page(admin: Admin, env: VirtualEnvironment) -> None:
    env.cluster.create_topic("wide", 2500)
    found = (await admin.describe_topics(["wide", "orders"])).raise_first()
    assert list(found) == ["wide", "orders"]
    assert numbers(found["wide"]) == list(range(2500))
    assert numbers(found["orders"]) == list(range(4))
    assert pages_of(env) == [(["orders", "wide"], None), (["wide"], "wide-1996")]


@pytest.mark.parametrize(
    "page_size", [3, *(pytest.param(each, marks=pytest.mark.full) for each in (1, 2, 4, 5, 9, 100))]
)
async def test_pages_of_any_size_have_the_same_topics(env: VirtualEnvironment, page_size: int) -> None:
    for name, count in (("a", 3), ("b", 1), ("c", 4)):
        env.cluster.create_topic(name, count)
    async with Admin(env.bootstrap_servers) as admin:
        wanted = ["c", "orders", "missing", "b", "a"]
        whole = await admin.describe_topics(wanted)
        found = await in_pages(admin, wanted, page_size)
        assert found.values == dict(whole.values_by_name)
        assert list(found.values) == ["c", "orders", "b", "a"]
        assert list(found.errors) == ["missing"]


async def test_what_pages_say_besides_is_unknown_by_metadata(
    env: VirtualEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        paged = (await admin.describe_topics(["orders"])).raise_first()["orders"]
    assert paged.authorized_operations is not None
    assert {"READ", "WRITE", "ALTER_CONFIGS"} <= paged.authorized_operations
    assert (paged.partitions[0].elr, paged.partitions[0].last_known_elr) == ((), ())
    offer(KAFKA_2_8, monkeypatch)
    async with Admin(env.bootstrap_servers) as admin:
        before = len(env.cluster.history.of(API))
        found = await admin.describe_topics(["orders", "missing"])
        assert len(env.cluster.history.of(API)) == before
        assert code_of(found["missing"]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic = found.values_by_name["orders"]
        assert topic.authorized_operations is None
        assert {(part.elr, part.last_known_elr) for part in topic.partitions} == {(None, None)}
        assert [part.isr for part in topic.partitions] == [part.isr for part in paged.partitions]


async def test_eligible_leader_replicas(env: VirtualEnvironment) -> None:
    def change(response: Any) -> Any:
        part = response.topics[0].partitions[0]
        part.isr_nodes, part.eligible_leader_replicas, part.last_known_elr = [1], [2, 3], None
        return response

    env.cluster.faults.on(API).mutate(change)
    async with Admin(env.bootstrap_servers) as admin:
        topic = (await admin.describe_topics(["orders"])).raise_first()["orders"]
        found = topic.partitions[0]
        assert (found.isr, found.elr, found.last_known_elr) == ((1,), (2, 3), None)


def after(page: int, change: Callable[[], object]) -> Callable[[Any], Any]:
    """Return a mutation that leaves responses as they are, and makes a change after this page."""
    count = 0

    def mutate(response: Any) -> Any:
        nonlocal count
        count += 1
        if count == page:
            change()
        return response

    return mutate


async def test_a_topic_that_is_deleted_between_two_pages(env: VirtualEnvironment) -> None:
    env.cluster.create_topic("a", 5)
    env.cluster.faults.on(API, times=None).mutate(after(1, lambda: env.cluster.delete_topic("a")))
    async with Admin(env.bootstrap_servers) as admin:
        found = await in_pages(admin, ["a", "orders"], 2)
        assert code_of(found.errors["a"]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert numbers(found.values["orders"]) == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
async def test_a_topic_that_is_recreated_between_two_pages_is_described_from_its_beginning(
    env: VirtualEnvironment, count: int
) -> None:
    def recreate() -> None:
        env.cluster.delete_topic("a")
        env.cluster.create_topic("a", count)

    env.cluster.create_topic("a", 5)
    env.cluster.faults.on(API, times=None).mutate(after(1, recreate))
    async with Admin(env.bootstrap_servers) as admin:
        found = await in_pages(admin, ["a", "orders"], 2)
        assert found.errors == {}
        assert numbers(found.values["a"]) == list(range(count))
        (listed,) = (topic for topic in await admin.list_topics() if topic.name == "a")
        assert found.values["a"].topic_id == listed.topic_id


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.full) for each in range(1, 20))])
async def test_random_changes_between_pages(env: VirtualEnvironment, seed: int) -> None:
    """Each name has a topic with all numbers from 0 on, or an error; what did not change is described as it is."""
    rng = random.Random(seed)
    names = [f"t{number}" for number in range(5)]
    for name in names:
        env.cluster.create_topic(name, rng.randint(1, 6))
    changed: set[str] = set()

    def change(response: Any) -> Any:
        if rng.random() < 0.3:
            name = rng.choice(names)
            exists = name in env.cluster.topics
            changed.add(name)
            if exists:
                env.cluster.delete_topic(name)
            if not exists or rng.random() < 0.6:
                env.cluster.create_topic(name, rng.randint(1, 6))
        return response

    async with Admin(env.bootstrap_servers) as admin:
        fault = env.cluster.faults.on(API, times=None).mutate(change)
        for _ in range(20):
            changed.clear()
            found = await in_pages(admin, names, rng.randint(1, 4))
            assert found.values.keys() | found.errors.keys() == set(names)
            for name, topic in found.values.items():
                assert numbers(topic) == list(range(len(topic.partitions))) != [], name
            listed = {topic.name: topic for topic in await admin.list_topics()}
            for name in set(names) - changed:
                if name in found.values:
                    assert (listed[name].topic_id, listed[name].partitions) == (
                        found.values[name].topic_id,
                        len(found.values[name].partitions),
                    )
                else:
                    assert name not in listed
        assert fault.hits > 50


async def test_a_broker_that_ignores_the_cursor(env: VirtualEnvironment) -> None:
    """It sends the first page again and again, which ends with the second."""

    def first_page(response: Any) -> Any:
        response.topics[0].partitions = [Partition(partition_index=each) for each in (0, 1)]
        response.next_cursor = Response.Cursor("orders", 2)
        return response

    env.cluster.create_topic("a", 1)
    env.cluster.faults.on(API, nth=2, times=None).mutate(first_page)
    async with Admin(env.bootstrap_servers) as admin:
        found = await in_pages(admin, ["orders", "a"], 2)
        assert numbers(found.values["a"]) == [0]
        assert isinstance(found.errors["orders"], IncompleteResponse)
        assert "nothing further about 'orders'" in str(found.errors["orders"])
        assert len(pages_of(env)) == 3


def code_of(error: object) -> int:
    assert isinstance(error, BrokerError)
    return error.code


# --- brokers that do not answer -----------------------------------------------------------------------------------------


async def test_at_the_deadline_what_was_described_is_returned(env: VirtualEnvironment) -> None:
    env.cluster.create_topic("a", 2)
    env.cluster.faults.on(API, nth=2, times=None).drop()
    async with Admin(env.bootstrap_servers, timeout=3.0) as admin:
        found = await in_pages(admin, ["orders", "a"], 2)
        assert numbers(found.values["a"]) == [0, 1]
        assert isinstance(found.errors["orders"], RequestTimedOut)


async def test_a_client_that_is_closed_between_two_pages_says_so(env: VirtualEnvironment) -> None:
    env.cluster.create_topic("a", 2)
    env.cluster.faults.on(API, nth=2, times=None).drop()
    async with Admin(env.bootstrap_servers) as admin:
        call = asyncio.create_task(in_pages(admin, ["orders", "a"], 2))
        while len(pages_of(env)) < 2:
            await asyncio.sleep(0.01)
        await admin.aclose()
        with pytest.raises(ClosedError):
            await call


async def test_a_node_that_has_the_request_is_dead_and_the_others_are_older(
    env: VirtualEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(KAFKA_2_8, monkeypatch)
    async with Admin(env.bootstrap_servers) as admin:
        port = int(env.bootstrap_servers.split(",")[2].rpartition(":")[2])
        env.network.refuse(HOST, port)
        env.network.cut(HOST, port)
        assert numbers((await admin.describe_topics(["orders"])).raise_first()["orders"]) == [0, 1, 2, 3]


async def test_what_was_described_before_all_brokers_were_gone_is_returned(env: VirtualEnvironment) -> None:
    env.cluster.create_topic("a", 2)
    env.cluster.faults.on(API, nth=2, times=None).drop()
    async with Admin(env.bootstrap_servers) as admin:
        call = asyncio.create_task(in_pages(admin, ["orders", "a"], 2))
        while len(pages_of(env)) < 2:
            await asyncio.sleep(0.01)
        for node in (1, 2, 3):
            await env.cluster.stop_node(node)
        found = await call
        assert numbers(found.values["a"]) == [0, 1]
        assert isinstance(found.errors["orders"], NoBrokersError)


async def test_without_any_broker_there_is_one_error(admin: Admin, env: VirtualEnvironment) -> None:
    for node in (1, 2, 3):
        await env.cluster.stop_node(node)
    with pytest.raises(NoBrokersError):
        await admin.describe_topics(["orders"])


# --- hostile pages ------------------------------------------------------------------------------------------------------


def page(*topics: Topic, cut: str | None = None) -> Response:
    return Response(topics=list(topics), next_cursor=None if cut is None else Response.Cursor(cut, 0))


def topic(name: str, *parts: int, topic_id: int = 1, error_code: int = 0) -> Topic:
    partitions = [Partition(partition_index=each) for each in parts]
    return Topic(error_code, name, UUID(int=topic_id), partitions=partitions)


def outcome(pages: TopicPages) -> dict[str, Any]:
    values = {
        name: [part.partition_index for part in found.partitions]
        for name, found in pages.results.values.items()
    }
    return values | {name: type(error).__name__ for name, error in pages.results.errors.items()}


async def test_a_page_without_what_was_asked_for_ends_the_call() -> None:
    pages = TopicPages(["a", "b"])
    pages.apply(page(topic("other", 0), topic("a", 1, 0, 1), topic("a", 2)))
    assert outcome(pages) == {"a": [0, 1]}
    pages.apply(page())
    assert outcome(pages) == {"a": [0, 1], "b": "IncompleteResponse"}
    assert not pages.left


async def test_a_cursor_without_partitions_ends_the_call() -> None:
    pages = TopicPages(["a"])
    pages.apply(page(topic("a"), cut="a"))
    assert outcome(pages) == {"a": "IncompleteResponse"}


async def test_a_topic_whose_id_changes_with_each_page_ends_the_call() -> None:
    pages = TopicPages(["a"])
    for number in range(100):
        if not pages.left:
            break
        pages.apply(page(topic("a", number, topic_id=number), cut="a"))
    assert number < 10
    assert outcome(pages) == {"a": "IncompleteResponse"}


async def test_a_topic_that_does_not_get_on_costs_the_others_nothing() -> None:
    pages = TopicPages(["a", "b", "c"])
    pages.apply(page(topic("a", 0), topic("b", 0, topic_id=1), cut="b"))
    for number in (2, 3, 4):
        pages.apply(page(topic("b", 0, topic_id=number), cut="b"))
        if "b" not in pages.left:
            break
    assert outcome(pages) == {"a": [0], "b": "IncompleteResponse"}
    assert pages.request().cursor is None
    pages.apply(page(topic("c", 0)))
    assert outcome(pages) == {"a": [0], "b": "IncompleteResponse", "c": [0]}


async def test_cursors_that_go_to_and_fro_end_the_call() -> None:
    pages = TopicPages(["a", "b"])
    for number in range(100):
        if not pages.left:
            break
        name = "ab"[number % 2]
        pages.apply(page(topic(name, 0), cut=name))
    assert number < 10
    assert outcome(pages) == {"a": "IncompleteResponse", "b": "IncompleteResponse"}


async def test_the_cursor_topic_is_refused_in_the_page_that_names_it() -> None:
    pages = TopicPages(["a", "b"])
    pages.apply(page(topic("a", 0), cut="a"))
    pages.apply(page(topic("a", error_code=29), cut="a"))
    assert outcome(pages) == {"a": "BrokerError"}
    assert pages.request().cursor is None
    pages.apply(page(topic("b", 0)))
    assert outcome(pages) == {"a": "BrokerError", "b": [0]}
