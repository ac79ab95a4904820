"""The page on rebalances: its snippets in all protocols, and the errors that it quotes."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest

from asyncgroup import AsyncGroupError, ConsumerConfig, ConsumerGroup, Handler, SubscriptionPattern
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.handlers import api_versions
from asyncgroup.errors import GroupClosed, Rebalanced, SessionEnd
from asyncgroup.group import Assignment, RangeAssignor
from asyncgroup.group.health.diagnosis import HOOK_TIMEOUT_SHOWN
from asyncgroup.group.sessions.end_limits import EndLimits
from asyncgroup.wire.apis import API_BY_NAME
from tests.guide.pages import page, snippet

CONSUMER: Final = ConsumerConfig(group_protocol="consumer")


def config_of(text: str) -> ConsumerConfig:
    """Return the configuration that the snippet with this text creates."""
    names: dict[str, Any] = {}
    exec(snippet("rebalances", text), names)
    config = names["config"]
    assert isinstance(config, ConsumerConfig)
    return config


@contextlib.asynccontextmanager
async def running(
    broker: EmbeddedCluster, config: ConsumerConfig, handler: Any
) -> AsyncIterator[ConsumerGroup]:
    async with ConsumerGroup(broker.bootstrap_servers, "orders", config) as group:
        task = asyncio.create_task(group.run("orders", handler))
        try:
            yield group
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.mark.parametrize(
    ("text", "lasts"),
    [
        ('assignors=["cooperative-sticky", "range"]', False),
        ('assignors="cooperative-sticky")', True),
        ('remote_assignor="uniform"', True),
        ('group_protocol="auto"', True),
    ],
)
async def test_a_handler_for_all_protocols(text: str, lasts: bool) -> None:
    """It prints the totals of the partitions that go away: all of them, or those that move; at the end the others."""
    lines: list[str] = []
    names: dict[str, Any] = {"print": lines.append}
    exec(snippet("rebalances", "class Totals"), names)
    config = config_of(text)
    others = config_of('assignors=["cooperative-sticky", "range"]') if not lasts else config
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", 4)
        totals = names["Totals"]()
        async with running(broker, config, totals) as group:
            await asyncio.sleep(10.0)
            session = group.session
            for partition in range(4):
                broker.produce("orders", b"a", b"b", partition=partition)
            await asyncio.sleep(5.0)
            async with running(broker, others, names["Totals"]()) as other:
                await asyncio.sleep(15.0)
                assert other.session is not None
                assert len(other.session.partitions) == 2
            assert (group.session is session) is lasts
            await asyncio.sleep(15.0)
        assert not totals.totals
    for partition in range(4):
        assert any(f"orders-{partition} had 2 records" in line for line in lines), lines


# --- what is refused ------------------------------------------------------------------------------------------------


class Waiting(Handler):
    async def consume_claim(self, session: Any, claim: Any) -> None:
        await claim.wait_ended()


async def refusal(broker: EmbeddedCluster, config: ConsumerConfig, topics: Any = "orders") -> AsyncGroupError:
    """Return the error of a member with this configuration."""
    async with ConsumerGroup(broker.bootstrap_servers, "orders", config) as group:
        with pytest.raises(AsyncGroupError) as caught:
            await group.run(topics, Waiting())
    return caught.value


async def wrong_syntax(broker: EmbeddedCluster) -> AsyncGroupError:
    return await refusal(broker, CONSUMER, SubscriptionPattern("eu("))


async def pattern_in_a_classic_group(broker: EmbeddedCluster) -> AsyncGroupError:
    return await refusal(broker, ConsumerConfig(), SubscriptionPattern("eu-.*"))


async def unknown_assignor(broker: EmbeddedCluster) -> AsyncGroupError:
    return await refusal(broker, ConsumerConfig(group_protocol="consumer", remote_assignor="sticky"))


async def instance_in_use(broker: EmbeddedCluster) -> AsyncGroupError:
    config = ConsumerConfig(group_protocol="consumer", group_instance_id="one")
    async with running(broker, config, Waiting()):
        await asyncio.sleep(5.0)
        return await refusal(broker, config)


async def fenced(broker: EmbeddedCluster) -> AsyncGroupError:
    config = ConsumerConfig(group_instance_id="one")
    former = asyncio.create_task(refusal(broker, config))
    await asyncio.sleep(5.0)
    async with running(broker, config, Waiting()):
        return await former


async def no_common_assignor(broker: EmbeddedCluster) -> AsyncGroupError:
    async with running(broker, ConsumerConfig(), Waiting()):
        await asyncio.sleep(5.0)
        return await refusal(broker, config_of('assignors="cooperative-sticky")'))


class WithUserData(RangeAssignor):
    name = "with-user-data"

    def assign(self, members: Any, counts: Any) -> Any:
        plan = super().assign(members, counts)
        return {member_id: Assignment(tuple(given), b"of its own") for member_id, given in plan.items()}


async def assignments_with_user_data(broker: EmbeddedCluster) -> AsyncGroupError:
    async with running(broker, ConsumerConfig(assignors=(WithUserData(),)), Waiting()):
        await asyncio.sleep(5.0)
        return await refusal(broker, CONSUMER)


OFFERED: Final = [
    entry
    for entry in api_versions.version_ranges()
    if entry.api_key != API_BY_NAME["ConsumerGroupHeartbeat"].key
]
"""The APIs of a broker without the consumer protocol."""


async def brokers_without_it(broker: EmbeddedCluster) -> AsyncGroupError:
    return await refusal(broker, CONSUMER)


async def wrong_setting(key: str, value: object) -> AsyncGroupError:
    with pytest.raises(AsyncGroupError) as caught:
        ConsumerConfig(group_protocol="consumer", **{key: value})  # type: ignore[arg-type]
    return caught.value


REFUSALS: Final[list[Callable[[EmbeddedCluster], Any]]] = [
    lambda _: wrong_setting("session_timeout", 10.0),
    lambda _: wrong_setting("assignors", ("range",)),
    pattern_in_a_classic_group,
    wrong_syntax,
    unknown_assignor,
    brokers_without_it,
    instance_in_use,
    no_common_assignor,
    assignments_with_user_data,
]
"""In the order of the table. The last row is about a setting that the embedded broker does not have."""


def rows() -> list[tuple[str, str]]:
    """Return class and text of the errors in the table."""
    table = page("rebalances").partition("\n## What is refused\n")[2]
    return re.findall(r"\| `(\w+)`(?:: (.*?))? \|$", table, re.MULTILINE)


@pytest.mark.parametrize(("number", "cause"), list(enumerate(REFUSALS)))
async def test_a_quoted_error(
    number: int, cause: Callable[[EmbeddedCluster], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, quoted = rows()[number]
    if cause is brokers_without_it:
        monkeypatch.setattr(api_versions, "version_ranges", lambda: copy.deepcopy(OFFERED))
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", 2)
        error = await cause(broker)
        if cause is instance_in_use:
            quoted, _, former = quoted.partition(" for the newcomer; in a classic group ")
        if cause is assignments_with_user_data:
            quoted = quoted.partition(", with the broker's text")[0]
    assert type(error).__name__ == name
    assert quoted in str(error)
    if cause is instance_in_use:
        async with EmbeddedCluster(nodes=1, seed=1) as broker:
            broker.create_topic("orders", 2)
            assert former.removesuffix(" for the former member") in str(await fenced(broker))


async def test_every_row_is_an_error() -> None:
    assert len(rows()) == len(REFUSALS) + 1


async def test_the_times_by_default() -> None:
    """Of handlers, hooks and the last commit, in a rebalance and at a close."""

    def times(cause: SessionEnd) -> list[float]:
        limits = EndLimits(ConsumerConfig(), asyncio.get_running_loop().time)
        limits.add_cause(cause)
        return [limits.handler_seconds, limits.hook_seconds, limits.commit_seconds]

    table = page("rebalances").partition("### The time for handlers and hooks")[2]
    found = re.findall(r"\| after ([\d.]+) s \| after ([\d.]+) s \|", table)
    expected = zip(times(Rebalanced("x")), times(GroupClosed("x")), strict=True)
    assert [(float(rebalance), float(close)) for rebalance, close in found] == list(expected)
    assert f"while it still runs, and for {HOOK_TIMEOUT_SHOWN:g} s" in page("monitoring")
