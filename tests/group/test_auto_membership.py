"""`group_protocol="auto"`: the protocol is chosen by the finalized features of the coordinator's broker."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from asyncgroup import Cluster, ConsumerConfig
from asyncgroup.errors import SessionEnd
from asyncgroup.group.group_protocol import (
    AutoMembership,
    current_protocol,
    epoch_identity,
    membership_factory,
)
from asyncgroup.group.health.member_health import MemberHealth
from asyncgroup.group.membership import JoinedGroup
from asyncgroup.offsets import MemberIdentity
from asyncgroup.wire import messages as m
from tests.cluster.scripted import Call, ScriptedCluster
from tests.group.consumer.scene import AA, HOST, Scene, now

pytestmark = pytest.mark.usefixtures("no_asyncio_errors")


class Classic:
    """Stands for the classic membership."""

    lanes = ("join-1",)
    identity = MemberIdentity()
    heartbeats: Any = None

    def __init__(self) -> None:
        self.joins: list[list[str]] = []
        self.left: list[str] = []

    async def join(self, topics: Iterable[str]) -> JoinedGroup:
        self.joins.append(list(topics))
        self.identity = MemberIdentity("classic-1", 1)
        return JoinedGroup(self.identity, {}, False, {})

    async def leave(self, reason: str, leaves: bool | None, timeout: float) -> None:
        self.left.append(reason)
        self.identity = MemberIdentity()

    async def stay(self, joined: JoinedGroup, member: Any) -> None: ...

    def is_fatal(self, code: int) -> bool:
        return code == 1

    def after_session(self, cause: SessionEnd | None) -> None: ...


@contextlib.asynccontextmanager
async def auto(
    keys: Mapping[str, Any] = MappingProxyType({}), **features: int
) -> AsyncIterator[tuple[Scene, AutoMembership, Classic]]:
    """Yield a membership with these configuration keys at a broker with these finalized features."""
    async with ScriptedCluster(HOST) as scripted:
        scripted.topics, scripted.topic_ids = {"aa": {0: (1, 0), 1: (1, 0)}}, {"aa": AA}

        def api_versions(call: Call) -> None:
            response = scripted[1].api_versions()
            response.finalized_features = [
                m.ApiVersionsResponse.FinalizedFeatureKey(name.replace("_", "."), level, level)
                for name, level in features.items()
            ]
            call.answer(response)

        scripted[1].script["ApiVersions"] = api_versions
        config = ConsumerConfig(group_protocol="auto", **keys)
        async with Cluster(scripted.servers, config) as cluster:
            with cluster.tracking(["aa"]):
                await cluster.refresh()
                scene, classic = Scene(scripted, cluster), Classic()
                health = MemberHealth(lambda _: True)
                health.state_since = now()
                membership = AutoMembership(cluster._inner, "g", config, health, classic=lambda *_: classic)
                yield scene, membership, classic


async def test_a_cluster_with_the_feature() -> None:
    async with auto(group_version=1, metadata_version=20) as (it, membership, classic):
        assert current_protocol(membership, "auto") == "auto"
        joined = await membership.join(["aa"])
        assert joined.assignment == {"aa": [0, 1]}
        assert current_protocol(membership, "auto") == "consumer"
        assert not classic.joins
        assert epoch_identity(membership) == membership.identity == joined.identity
        assert membership.lanes == ("join-1",)
        assert not membership.is_fatal(1)
        it.beats.clear()
        await membership.leave("closing", None, 5.0)
        assert [beat.request.member_epoch for beat in it.beats] == [-1]


@pytest.mark.parametrize("features", [{}, {"group_version": 0}, {"metadata_version": 20}])
async def test_a_cluster_without_it(features: dict[str, int]) -> None:
    async with auto(**features) as (it, membership, classic):
        await membership.join(["aa"])
        assert classic.joins == [["aa"]]
        assert not it.beats
        assert epoch_identity(membership) is None
        assert current_protocol(membership, "auto") == "classic"
        assert membership.is_fatal(1)


async def test_the_choice_is_kept_while_the_member_is_in_the_group() -> None:
    async with auto() as (it, membership, classic):
        await membership.join(["aa"])
        connection = await it.cluster._inner.network.connection(1, "group")
        connection.features = {"group.version": 1}
        await membership.join(["aa"])
        assert len(classic.joins) == 2
        await membership.leave("closing", None, 5.0)
        await membership.join(["aa"])
        assert len(classic.joins) == 2
        assert len(it.beats) == 1, "the cluster was upgraded"


async def test_the_log_names_settings_without_effect(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "asyncgroup.group")
    keys = {"session_timeout": 10.0, "assignors": ("range",)}
    async with auto(keys, group_version=1) as (_, membership, _):
        await membership.join(["aa"])
    assert (
        "group g: the group protocol is consumer; without effect: session_timeout, assignors"
        in caplog.messages
    )


async def test_a_broker_that_does_not_offer_the_request_in_spite_of_the_feature() -> None:
    async with auto(group_version=1) as (it, membership, classic):
        it.broker.versions["ConsumerGroupHeartbeat"] = (0, 0)
        await membership.join(["aa"])
        assert classic.joins == [["aa"]]


async def test_factories() -> None:
    def name(**config: Any) -> str:
        factory: Any = membership_factory(ConsumerConfig(**config), [])
        return getattr(factory, "func", factory).__name__

    assert name() == "ClassicMembership"
    assert name(group_protocol="consumer") == "ConsumerMembership"
    assert name(group_protocol="auto") == "AutoMembership"
