"""Hooks: each listener receives the events that it has a method for, and its errors don't affect the client."""

from __future__ import annotations

import ast
import asyncio
import inspect
import types
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import asyncgroup
from asyncgroup import (
    Batch,
    BatchResult,
    Claim,
    Cluster,
    ConfigError,
    Consumer,
    ConsumerConfig,
    ConsumerGroup,
    Delivery,
    Hook,
    Producer,
    ProducerRecord,
    Record,
    RecordMetadata,
    Session,
    WorkQueue,
)
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import AsyncGroupError, SessionEnd
from asyncgroup.hooks import EVENTS, Hooks
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import CommittedOffset
from asyncgroup.pulsar import (
    MessageId,
    PulsarClient,
    PulsarProducer,
    PulsarProducerRecord,
    PulsarTopicConsumer,
    PulsarTransaction,
)
from asyncgroup.wire.chunks import ChunkInfo

pytestmark = pytest.mark.virtual


class Listener:
    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def on_commit(self, *values: object) -> None:
        self.events.append(values)


class Broken(Listener):
    def on_commit(self, *values: object) -> None:
        raise RuntimeError("a hook's bug")


def test_listeners_receive_events_that_they_have_methods_for() -> None:
    first, second = Listener(), Listener()
    all_of_them = Hooks(iter([first, type("Silent", (Hook,), {})(), second]))
    all_of_them.emit("on_commit", "g", {}, None)
    all_of_them.emit("on_heartbeat", "g", 0.1)
    assert first.events == second.events == [("g", {}, None)]


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        (print, "hooks=.* is not allowed: a list of hook objects"),
        ("on_commit", "a list of hook objects"),
        (
            [print],
            "objects with at least one of the methods on_ack, on_attached, on_batch_done, on_chunks_dropped",
        ),
        ([type("Misspelled", (), {"on_jon": print})()], "objects with at least one of the methods"),
        ([Listener], "objects, not their classes"),
    ],
)
@pytest.mark.parametrize(
    "made", [Hooks, lambda hooks: ConsumerGroup("127.0.0.1:9092", "g", hooks=hooks)], ids=["Hooks", "group"]
)
def test_values_that_are_no_hooks_are_refused(made: Any, hooks: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(hooks)


def test_no_hooks_at_all(caplog: pytest.LogCaptureFixture) -> None:
    """Clients need not prepare an event that nothing listens to, and emitting it calls and logs nothing."""
    hooks = Hooks()
    assert len(EVENTS) > 20
    for event in EVENTS:
        assert not hooks.has_listener(event)
        assert hooks.with_listener(event) is None
        hooks.emit(event, 1, 2)
    assert not hooks.wants_records()
    assert caplog.records == []


def test_an_exception_in_a_hook_is_logged_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener()
    Hooks([Broken(), listener]).emit("on_commit", 1)
    assert listener.events == [(1,)]
    assert "hook on_commit raised" in caplog.text
    assert "a hook's bug" in caplog.text


def test_a_cancellation_raised_by_a_hook_is_logged_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    """Regression test: it ended the heartbeats or the fetches of a broker without any sign."""

    class ReadsResult(Listener):
        def on_commit(self, *values: object) -> None:
            raise asyncio.CancelledError("the result of a cancelled future")

    listener = Listener()
    Hooks([ReadsResult(), listener]).emit("on_commit", 1)
    assert listener.events == [(1,)]
    assert "the result of a cancelled future" in caplog.text


def test_a_coroutine_method_is_refused() -> None:
    class Waits:
        async def on_heartbeat(self, group_id: str, seconds: float) -> None: ...

    with pytest.raises(ConfigError, match=r"async def on_heartbeat.*plain methods, not coroutine functions"):
        Hooks([Listener(), Waits()])


def test_an_unknown_event_is_an_error() -> None:
    with pytest.raises(KeyError):
        Hooks().emit("on_comit")


def parameters(event: str) -> list[inspect.Parameter]:
    return list(inspect.signature(getattr(Hook, event)).parameters.values())[1:]


def test_every_emitted_event_is_declared_with_its_values() -> None:
    """Each `emit("on_…", …)` in the package names a method of Hook and passes as many values as it has parameters."""
    emitted = set()
    for path in Path(asyncgroup.__file__ or "").parent.rglob("*.py"):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if ".emit(" in source else ():
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "emit"
            ):
                event, *values = node.args
                if not isinstance(event, ast.Constant):
                    continue
                assert event.value in EVENTS, f"{path}:{node.lineno}"
                emitted.add(event.value)
                # `*tp` stands for topic and partition
                count = len(values) + sum(isinstance(value, ast.Starred) for value in values)
                assert count == len(parameters(str(event.value))), f"{path}:{node.lineno}: {event.value}"
    assert emitted == EVENTS


def test_the_events_are_the_methods_of_the_protocol() -> None:
    assert {name for name in vars(Hook) if not name.startswith("_")} == EVENTS


@pytest.mark.parametrize("event", sorted(EVENTS))
def test_every_method_of_the_protocol_is_documented_and_does_nothing(event: str) -> None:
    method = getattr(Hook, event)
    assert inspect.getdoc(method)
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in parameters(event))
    assert method(object(), *parameters(event)) is None


def test_the_protocol_is_a_base_class_whose_own_methods_are_never_called() -> None:
    class Counter(Hook):
        beats = 0

        def on_heartbeat(self, group_id: str, seconds: float) -> None:
            self.beats += 1

    counter = Counter()
    hooks = Hooks([counter])
    for event in EVENTS:
        hooks.emit(event, *(None for _ in parameters(event)))
    assert counter.beats == 1
    assert {event for event, listeners in hooks._listeners.items() if listeners} == {"on_heartbeat"}


TYPES = {
    each.__name__: each
    for each in (
        AsyncGroupError,
        Batch,
        BatchResult,
        Claim,
        CommittedOffset,
        Consumer,
        ConsumerGroup,
        Delivery,
        MessageId,
        Producer,
        ProducerRecord,
        PulsarClient,
        PulsarProducer,
        PulsarProducerRecord,
        PulsarTopicConsumer,
        PulsarTransaction,
        Record,
        RecordMetadata,
        Session,
        SessionEnd,
        TopicPartition,
        WorkQueue,
    )
}
"""What the module of Hook imports for its annotations only."""


class Checks:
    """A hook that checks the arguments of every call against the annotations of the protocol."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.wrong: list[str] = []

    def __getattr__(self, event: str) -> Any:
        if event not in EVENTS:
            raise AttributeError(event)
        return partial(self.check, event)

    def check(self, event: str, *values: object) -> None:
        self.seen.add(event)
        hints = get_type_hints(getattr(Hook, event), localns=TYPES)
        bound = inspect.signature(getattr(Hook, event)).bind(None, *values).arguments
        self.wrong += [
            f"{event}: {name}={value!r}"
            for name, value in bound.items()
            if name != "self" and not fits(value, hints[name])
        ]


def fits(value: object, hint: Any) -> bool:
    """Return whether a value has the annotated type, including keys and values of mappings."""
    if isinstance(hint, types.UnionType):
        return any(fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is None:
        # bool is a subclass of int
        return isinstance(value, hint) and (hint is not int or not isinstance(value, bool))
    key, content = get_args(hint)
    return isinstance(value, get_origin(hint)) and all(
        fits(each, key) and fits(value[each], content) for each in value
    )


async def test_hooks_get_values_of_the_annotated_types(caplog: pytest.LogCaptureFixture) -> None:
    checks = Checks()

    async def read(session: Session, claim: Claim) -> None:
        async for record in claim:
            claim.mark(record)
            if record.offset == 1:
                await asyncio.sleep(5.0)  # stalled
            if record.offset == 150:
                await asyncio.sleep(10.0)  # stuck

    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", 1)
        broker.faults.on("Heartbeat", nth=2).throttle(200)
        broker.faults.on("OffsetCommit").error("COORDINATOR_LOAD_IN_PROGRESS")
        config = ConsumerConfig(
            auto_offset_reset="earliest",
            max_processing_time=0.5,
            session_timeout=60.0,
            max_poll_interval=8.0,
            chunks="assemble",
        )
        orphan = ChunkInfo("a-1", 1, 2, 2).headers()
        async with (
            Producer(broker.bootstrap_servers, hooks=[checks]) as producer,
            ConsumerGroup(broker.bootstrap_servers, "g", config, hooks=[checks]) as group,
        ):
            running = asyncio.create_task(group.run("orders", read))
            await producer.send("orders", b"b", headers=orphan)
            for number in range(200):
                await producer.send("orders", b"%d" % number)
            await asyncio.sleep(20.0)
            await group.aclose()
            await running
    assert checks.wrong == []
    assert "raised" not in caplog.text  # every annotation is known here
    of_queues = {"on_delivery_start", "on_delivery_end"}
    of_pulsar = {
        "on_attached",
        "on_detached",
        "on_receive",
        "on_ack",
        "on_transaction_start",
        "on_transaction_end",
    }  # see tests/pulsar/test_pulsar_hooks.py
    assert checks.seen == EVENTS - of_queues - of_pulsar


class Opened:
    def __init__(self) -> None:
        self.clients: list[object] = []

    def on_open(self, client: object) -> None:
        self.clients.append(client)


async def test_each_client_reports_that_it_was_entered() -> None:
    of_cluster, own = Opened(), Opened()
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", 1)
        servers = broker.bootstrap_servers
        async with (
            Cluster(servers, hooks=[of_cluster]) as cluster,
            ConsumerGroup(cluster, "g") as group,
            Consumer(cluster) as consumer,
            Producer(cluster) as silent,
            Producer(servers, hooks=[own]) as producer,
            WorkQueue(servers, "q", "orders", hooks=[own]) as queue,
        ):
            assert of_cluster.clients == [group, consumer]
            assert silent not in own.clients
            members = [each for each in own.clients if isinstance(each, ConsumerGroup)]
            assert [each.group_id for each in members] == ["q"]
            assert own.clients == [producer, *members, queue]
