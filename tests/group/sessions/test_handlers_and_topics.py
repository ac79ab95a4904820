"""Valid handlers and topics, the errors for others, and the resolution of subscriptions."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import asyncgroup
from asyncgroup import ConsumerGroup, SubscriptionPattern, in_thread
from asyncgroup.cluster.metadata import ClusterView, PartitionInfo, TopicInfo
from asyncgroup.errors import BrokerError, ConfigError, ErrorCode
from asyncgroup.group.sessions.handler import Handler, as_handler
from asyncgroup.group.topics.topics import (
    Absence,
    KnownTopics,
    ResolvedTopics,
    Subscription,
    check_topics,
    resolve_topics,
)
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryBackoff, RetryLoop


class Whole(Handler):
    async def consume_claim(self, session, claim):
        session.append(claim)


async def function(session, claim):
    session.append(claim)


class Callable_:
    async def __call__(self, session, claim):
        session.append(claim)

    async def method(self, session, claim):
        session.append(claim)


def plain(session, claim):
    """A plain function."""


# -- handlers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "handler",
    [
        Whole(),
        function,
        Callable_(),
        Callable_().method,
        functools.partial(function),
        functools.partial(Callable_()),
    ],
    ids=["Handler", "function", "callable object", "method", "partial", "partial of an object"],
)
async def test_valid_handlers(handler: Any) -> None:
    made, calls = as_handler(handler), []
    assert isinstance(made, Handler)
    for hook in (made.setup, made.cleanup):
        await hook(calls)  # type: ignore[arg-type]
    for hook in (made.on_assigned, made.on_revoked, made.on_lost):  # type: ignore[assignment]
        await hook(calls, [])  # type: ignore[call-arg, arg-type]
    await made.consume_claim(calls, "claim")  # type: ignore[arg-type]
    assert calls == ["claim"]
    assert as_handler(made) is made


def lambda_handler(session, claim):
    return function(session, claim)


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (plain, r"in_thread\(fn\)"),
        (lambda_handler, r"in_thread\(fn\)"),
        (functools.partial(plain), r"in_thread\(fn\)"),
        (Whole, "an object, not its class"),
        (None, "an object of a subclass of Handler, or an async function"),
        ("orders", "an object of a subclass of Handler, or an async function"),
        (type("NoHandler", (), {"consume_claim": function})(), "a subclass of Handler"),
    ],
)
def test_invalid_handlers(handler: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        as_handler(handler)


@pytest.mark.parametrize(
    "name", ["setup", "consume_claim", "cleanup", "on_assigned", "on_revoked", "on_lost"]
)
def test_a_method_that_is_not_async_is_named(name: str) -> None:
    broken = type("Broken", (Whole,), {name: plain})
    with pytest.raises(ConfigError, match=rf"Broken\.{name}.*an `async def`"):
        as_handler(broken())


@pytest.mark.parametrize("method", ["pause", "resume"])
@pytest.mark.parametrize("partitions", ["greetings", ("greetings", -1), ["ab"]])
def test_pauses_of_other_values_are_refused(method: str, partitions: Any) -> None:
    group = ConsumerGroup("127.0.0.1:9092", "g")
    with pytest.raises(ConfigError, match=r"partitions?=.* is not allowed: .* as \("):
        getattr(group, method)(partitions)


@pytest.mark.parametrize("given", [("greetings", 0), TopicPartition("greetings", 0), [("greetings", 0)]])
def test_a_partition_may_be_paused_alone(given: Any) -> None:
    group = ConsumerGroup("127.0.0.1:9092", "g")
    group.pause(given)
    assert group._inner._source.paused == {("greetings", 0)}
    group.resume(given)
    assert not group._inner._source.paused


@pytest.mark.parametrize(
    "wrong",
    [
        function,
        Callable_(),
        Callable_().method,
        functools.partial(function),
        7,
        functools.partial(Callable_()),
    ],
)
def test_in_thread_accepts_plain_functions_only(wrong: Any) -> None:
    """Found by review: an object with an async `__call__` was accepted, and its coroutine never awaited."""
    with pytest.raises(ConfigError, match=r"in_thread=.*a plain function \(session, claim\)"):
        in_thread(wrong)


def test_in_thread_accepts_what_runs_an_async_function() -> None:
    """A wrapper with `functools.wraps` that returns no coroutine."""

    @functools.wraps(function)
    def run(session: Any, claim: Any) -> None:
        asyncio.run(function(session, claim))

    assert isinstance(as_handler(in_thread(run)), Handler)


def test_there_is_one_in_thread() -> None:
    assert asyncgroup.in_thread is asyncgroup.group.in_thread is asyncgroup.workqueue.in_thread


@pytest.mark.parametrize(
    "wrong", [lambda: None, lambda one, two, three: None, lambda *, session, claim: None]
)
def test_in_thread_refuses_functions_with_other_arguments(wrong: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"in_thread=.*\(session, claim\), or \(delivery\) for a work queue \("
    ):
        in_thread(wrong)


def test_a_function_of_deliveries_is_no_handler_of_claims() -> None:
    with pytest.raises(ConfigError, match=r"handler=<in_thread.*\(session, claim\) \(too many positional"):
        as_handler(in_thread(lambda delivery: None))
    assert isinstance(as_handler(in_thread(lambda *arguments: None)), Handler)


# -- topics -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("orders", ["orders"]),
        (["b", "a", "b"], ["a", "b"]),
        ({"b", "a"}, ["a", "b"]),
        ((name for name in ("b", "a")), ["a", "b"]),
        ({"a": 1}, ["a"]),
    ],
)
def test_topics_are_sorted_without_repeats(given: Any, expected: list[str]) -> None:
    assert check_topics(given) == expected


def test_a_pattern_is_returned_unchanged() -> None:
    pattern = re.compile("orders.*")
    assert check_topics(pattern) is pattern


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ([], "it is empty"),
        ("", "topic=''"),
        ("a b", "topic='a b'"),
        ("^orders.*", r"topics='\^orders\.\*' .* re\.compile\('\^orders\.\*'\) .* SubscriptionPattern\("),
        ("greet.*", r"topics='greet\.\*' .* with the consumer protocol, SubscriptionPattern\('greet\.\*'\)"),
        ("*", r"topics='\*' .* re\.compile\('orders\.\*'\)"),
        (
            ["orders", "bills[0-9]"],
            r"topic='bills\[0-9\]' .* instead of the list: re\.compile\('bills\[0-9\]'\)",
        ),
        (["orders", re.compile("a")], r"topics=re\.compile\('a'\) .* stands alone"),
        ([SubscriptionPattern("a")], r"topics=SubscriptionPattern\('a'\) .* stands alone.*'a\|b'"),
        (["good", "bad/name"], "topic='bad/name'"),
        (["x" * 250], "1 to 249"),
        (["."], r"topic='\.'"),
        ([7], "topic=7"),
        (None, "a topic, several topics, or a compiled pattern"),
        (7, "topics=7"),
        (b"orders", "topics=b'orders'"),
        (re.compile(b"orders"), "a pattern of str"),
    ],
)
def test_invalid_topics_are_named(wrong: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_topics(wrong)


def test_a_pattern_for_the_broker_is_a_value() -> None:
    pattern = SubscriptionPattern("eu-.*")
    assert pattern == SubscriptionPattern("eu-.*") != SubscriptionPattern("us-.*")
    assert repr(pattern) == "SubscriptionPattern('eu-.*')"
    assert {pattern: 1}[SubscriptionPattern("eu-.*")] == 1


@pytest.mark.parametrize("wrong", ["", None, b"eu", 7, ["eu"]])
def test_patterns_for_the_broker_that_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="pattern="):
        SubscriptionPattern(wrong)


def test_a_pattern_for_the_broker_needs_the_consumer_protocol() -> None:
    pattern = SubscriptionPattern("eu-.*")
    for protocol in ("consumer", "auto"):
        assert check_topics(pattern, protocol) is pattern
    with pytest.raises(ConfigError, match=r"topics=SubscriptionPattern\('eu-\.\*'\) .* compiled pattern"):
        check_topics(pattern, "classic")
    with pytest.raises(ConfigError, match=r"re\.compile\('eu-\.\*'\)") as caught:
        check_topics("eu-.*", "classic")
    assert "SubscriptionPattern" not in str(caught.value)


class Topics:
    """A fake cluster with these topics."""

    def __init__(self, *names: str) -> None:
        self.names = list(names or ["orders", "orders-eu", "old-orders", "__consumer_offsets"])
        self.slow: list[str] = []
        """Topics that exist, but are only in the metadata after the next refresh."""
        self.errors: dict[str, ErrorCode] = {}
        """Error codes of topics; each is there until the test changes it."""
        self.tracked: list[str] = []
        self.view = ClusterView()

    def retry(self) -> RetryLoop:
        return RetryLoop(RetryBackoff(0.1, 2.0, None))

    @contextmanager
    def tracking(self, names: Iterable[str]) -> Iterator[None]:
        self.tracked += names
        try:
            yield
        finally:
            for name in names:
                self.tracked.remove(name)

    async def refresh(self) -> None:
        found = await self.all_topics()
        self.view = ClusterView(topics={name: found[name] for name in self.tracked if name in found})
        self.names, self.slow = self.names + self.slow, []

    async def all_topics(self) -> dict[str, TopicInfo]:
        partitions = {0: PartitionInfo(0, 1)}
        return {
            n: TopicInfo(
                n, partitions=partitions, error_code=self.errors.get(n, 0), is_internal=n.startswith("__")
            )
            for n in self.names
        }

    async def topics(self, names: list[str]) -> dict[str, TopicInfo]:
        found = await self.all_topics()
        for name in names:
            if name not in found:
                raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}")
            if name in self.errors:
                raise BrokerError(self.errors[name], f"topic {name!r}")
        return {name: found[name] for name in names}


async def resolved(cluster: Any, topics: Any, known: KnownTopics | None = None) -> ResolvedTopics:
    return await resolve_topics(cluster, Subscription(topics), known or KnownTopics())


async def test_a_pattern_selects_topics_by_match_without_internal_ones() -> None:
    cluster = Topics()
    pattern = re.compile("orders")
    assert await resolved(cluster, pattern) == ResolvedTopics(["orders", "orders-eu"], pattern)
    assert (await resolved(cluster, re.compile("orders$"))).existing == ["orders"]
    assert (await resolved(cluster, re.compile(".*"))).existing == ["old-orders", "orders", "orders-eu"]
    assert (await resolved(cluster, re.compile("none"))).existing == []


async def test_topics_by_name_must_exist() -> None:
    cluster = Topics()
    assert (await resolved(cluster, ["orders"])).existing == ["orders"]
    with pytest.raises(BrokerError, match="'nowhere'"):
        await resolved(cluster, ["nowhere", "orders"])


async def test_a_deleted_topic_is_left_out_and_recorded_as_missing() -> None:
    cluster, known = Topics("a", "b"), KnownTopics()
    assert await resolved(cluster, ["a", "b"], known) == ResolvedTopics(["a", "b"], ["a", "b"])
    cluster.names = ["b"]
    await asyncio.sleep(5)
    gone = await resolved(cluster, ["a", "b"], known)
    assert gone == ResolvedTopics(["b"], ["a", "b"], {"a": Absence(5.0)})
    assert gone.names == ["b", "a"]
    await asyncio.sleep(5)
    assert (await resolved(cluster, ["a"], known)).absent == {"a": Absence(5.0)}, "since it was first missing"
    cluster.names = ["a", "b"]
    assert await resolved(cluster, ["a", "b"], known) == ResolvedTopics(["a", "b"], ["a", "b"])
    assert known.absent == {}
    assert known.was_added(TopicPartition("a", 0)), "recreated"
    assert not known.was_added(TopicPartition("b", 0))


async def test_a_topic_that_never_existed_is_waited_for_if_that_is_wanted() -> None:
    """A broker that has just started may not know it yet: only a second look counts."""
    cluster, known = Topics("b"), KnownTopics()
    subscription = Subscription(["a", "b"])
    found = await resolve_topics(cluster, subscription, known, waits_for_missing=True)  # type: ignore[arg-type]
    assert (found.existing, list(found.absent)) == (["b"], ["a"])
    cluster.names = ["a", "b"]
    found = await resolve_topics(cluster, subscription, known, waits_for_missing=True)  # type: ignore[arg-type]
    assert (found.existing, list(found.absent)) == (["a", "b"], [])
    assert known.was_added(TopicPartition("a", 0)), "no record of it may be skipped"
    cluster.slow = ["c"]
    found = await resolve_topics(cluster, Subscription("c"), known, waits_for_missing=True)  # type: ignore[arg-type]
    assert found.existing == ["c"]
    assert not known.was_added(TopicPartition("c", 0))


async def test_an_optional_topic_is_waited_for_and_no_other() -> None:
    """The retry topic of a work queue, subscribed to by name or by a pattern."""
    cluster, known, optional = Topics("b"), KnownTopics(), {"again"}
    for subscription in (Subscription(["again", "b"]), Subscription(re.compile("b|again"))):
        found = await resolve_topics(cluster, subscription, known, optional=optional)  # type: ignore[arg-type]
        assert (found.existing, list(found.absent)) == (["b"], ["again"])
    with pytest.raises(BrokerError, match="'c'"):
        await resolve_topics(cluster, Subscription(["again", "c"]), known, optional=optional)  # type: ignore[arg-type]
    cluster.names = ["again", "b"]
    found = await resolve_topics(cluster, Subscription(re.compile("b|again")), known, optional=optional)  # type: ignore[arg-type]
    assert (found.existing, dict(known.absent)) == (["again", "b"], {})
    assert known.was_added(TopicPartition("again", 0))


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.LEADER_NOT_AVAILABLE])
async def test_a_topic_with_an_error_is_left_out_once_it_was_read(code: ErrorCode) -> None:
    cluster, known = Topics("a", "b"), KnownTopics()
    cluster.errors["a"] = code
    with pytest.raises(BrokerError, match=code.name):
        await resolved(cluster, ["a", "b"], known)
    cluster.errors.clear()
    await resolved(cluster, ["a", "b"], known)
    cluster.errors["a"] = code
    began = asyncio.get_running_loop().time()
    await cluster.refresh()
    found = await resolved(cluster, ["a", "b"], known)
    assert (found.existing, {name: each.code for name, each in found.absent.items()}) == (["b"], {"a": code})
    assert asyncio.get_running_loop().time() - began <= 0.2
    cluster.errors.clear()
    assert (await resolved(cluster, ["a", "b"], known)).existing == ["a", "b"]
    assert not known.was_added(TopicPartition("a", 0)), "its records were not read from the start"


async def test_topics_that_get_errors_one_after_the_other_during_the_lookup() -> None:
    cluster, known = Topics("a", "b", "c", "d", "e"), KnownTopics()
    names = ["a", "b", "c", "d", "e"]
    await resolved(cluster, names, known)
    look_up = cluster.topics

    async def denied(wanted: list[str]) -> dict[str, TopicInfo]:
        if len(wanted) > 1:
            cluster.errors[wanted[0]] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            cluster.tracked += names
            await cluster.refresh()
        return await look_up(wanted)

    cluster.topics = denied  # type: ignore[method-assign]
    found = await resolved(cluster, names, known)
    assert found.existing == ["e"]
    assert set(found.absent) == {"a", "b", "c", "d"}


async def test_a_topic_that_is_waited_for_may_be_denied_later_but_not_at_first() -> None:
    cluster, known = Topics("a", "b"), KnownTopics()
    cluster.errors["a"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    subscription = Subscription(["a", "b"])
    with pytest.raises(BrokerError, match="AUTHORIZATION"):
        await resolve_topics(cluster, subscription, known, waits_for_missing=True)  # type: ignore[arg-type]
    cluster.names = ["b"]
    await resolve_topics(cluster, subscription, known, waits_for_missing=True)  # type: ignore[arg-type]
    cluster.names = ["a", "b"]
    found = await resolve_topics(cluster, subscription, known, waits_for_missing=True)  # type: ignore[arg-type]
    assert found.existing == ["b"]
    assert not found.absent["a"].is_missing


def test_change_reports_whether_the_topics_differ() -> None:
    subscription = Subscription(["b", "a"])
    assert not subscription.change(["a", "b", "a"])
    assert subscription.change("a")
    assert subscription.names == ["a"]
    assert subscription.change(re.compile("a"))
    assert subscription.names == []
    assert not subscription.change(re.compile("a"))
    with pytest.raises(ConfigError):
        subscription.change([])
    assert subscription.names == []
