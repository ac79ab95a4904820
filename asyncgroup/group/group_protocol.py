"""Choose the protocol of a group by `ConsumerConfig.group_protocol`.

`auto` decides before a join, as long as the member is not in the group: KIP-848 if the coordinator's finalized feature
`group.version` is 1 or more, else the classic protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final, TypeAlias

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.config.consumer import CLASSIC_KEYS
from asyncgroup.errors import SessionEnd, UnsupportedVersionError
from asyncgroup.group.assignors import Assignor
from asyncgroup.group.classic.membership import ClassicMembership
from asyncgroup.group.consumer.membership import ConsumerMembership
from asyncgroup.group.health.member_health import MemberHealth
from asyncgroup.group.membership import Assignable, HeartbeatStatus, JoinedGroup, Membership
from asyncgroup.group.topics.subscription_pattern import SubscriptionPattern
from asyncgroup.offsets import GROUP_LANE, MemberIdentity

__all__ = [
    "AutoMembership",
    "MembershipFactory",
    "chosen_protocol",
    "current_protocol",
    "epoch_identity",
    "membership_factory",
]

_log = logging.getLogger("asyncgroup.group")

MembershipFactory: TypeAlias = Callable[[ClusterClient, str, ConsumerConfig, MemberHealth], Membership]
"""A group protocol: creates the membership of a group object, from its cluster, group id, configuration and health."""

GROUP_VERSION: Final = "group.version"
"""The feature of clusters that support KIP-848, from level 1 on."""


def membership_factory(config: ConsumerConfig, assignors: list[Assignor]) -> MembershipFactory:
    """Return the factory of the configured protocol; `assignors` are for the classic one."""
    classic = partial(ClassicMembership, assignors=assignors)
    if config.group_protocol == "auto":
        return partial(AutoMembership, classic=classic)
    return ConsumerMembership if config.group_protocol == "consumer" else classic


def current_protocol(membership: Membership, configured: str) -> str:
    """Return the protocol of the group that the member is in; the configured one, perhaps `auto`, if it is in none."""
    if isinstance(membership, AutoMembership) and membership.identity.member_id:
        return chosen_protocol(membership)
    return configured


def chosen_protocol(membership: Membership) -> str:
    """Return `classic` or `consumer`; with `auto` the choice of the last join, `classic` before the first."""
    if isinstance(membership, AutoMembership):
        membership = membership.chosen
    return "consumer" if isinstance(membership, ConsumerMembership) else "classic"


def epoch_identity(membership: Membership) -> MemberIdentity | None:
    """Return the member that fetches offsets with its epoch; None by the classic protocol."""
    if isinstance(membership, AutoMembership):
        membership = membership.chosen
    return membership.identity if isinstance(membership, ConsumerMembership) else None


class AutoMembership:
    """Membership by the protocol that the cluster supports; classic before the first join."""

    def __init__(
        self,
        cluster: ClusterClient,
        group_id: str,
        config: ConsumerConfig,
        member_health: MemberHealth,
        *,
        classic: MembershipFactory,
    ) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._config = config
        self._classic: Membership = classic(cluster, group_id, config, member_health)
        self._consumer: Membership = ConsumerMembership(cluster, group_id, config, member_health)
        self.chosen = self._classic
        """The membership in use."""

    def __repr__(self) -> str:
        return f"<AutoMembership {self.chosen!r}>"

    @property
    def identity(self) -> MemberIdentity:
        """See `Membership`."""
        return self.chosen.identity

    @property
    def lanes(self) -> Collection[str]:
        """See `Membership`: those of the classic protocol, as the other one has none."""
        return self._classic.lanes

    @property
    def heartbeats(self) -> HeartbeatStatus:
        """See `Membership`."""
        return self.chosen.heartbeats

    async def join(self, topics: Iterable[str] | SubscriptionPattern) -> JoinedGroup:
        """See `Membership`. A member that is not in the group chooses its protocol first."""
        wanted = topics if isinstance(topics, SubscriptionPattern) else list(topics)
        is_member = bool(self.chosen.identity.member_id)
        if not is_member:
            self._choose(self._consumer if await self._supports_consumer() else self._classic)
        try:
            return await self.chosen.join(wanted)
        except UnsupportedVersionError:
            if is_member or self.chosen is self._classic:
                raise
            self._choose(self._classic)
            return await self.chosen.join(wanted)

    def _choose(self, membership: Membership) -> None:
        if self.chosen is not membership:
            name = "consumer" if membership is self._consumer else "classic"
            given = [key for key in CLASSIC_KEYS if getattr(self._config, key) is not None]
            unused = f"; without effect: {', '.join(given)}" if given and name == "consumer" else ""
            _log.info("group %s: the group protocol is %s%s", self._group_id, name, unused)
        self.chosen = membership

    async def _supports_consumer(self) -> bool:
        """Return whether the coordinator's broker has the feature. Raises BrokerError, TransportError."""
        address = await self._cluster.coordinators.locate(self._group_id)
        connection = await self._cluster.network.connection(address, GROUP_LANE)
        return connection.features.get(GROUP_VERSION, 0) >= 1

    async def stay(self, joined: JoinedGroup, member: Assignable) -> None:
        """See `Membership`."""
        await self.chosen.stay(joined, member)

    def rejoin(self, cause: SessionEnd) -> bool:
        """See `Membership`."""
        return self.chosen.rejoin(cause)

    def is_fatal(self, code: int) -> bool:
        """See `Membership`."""
        return self.chosen.is_fatal(code)

    def after_session(self, cause: SessionEnd | None) -> None:
        """See `Membership`."""
        self.chosen.after_session(cause)

    async def leave(self, reason: str, leaves: bool | None, timeout: float) -> None:
        """See `Membership`."""
        await self.chosen.leave(reason, leaves, timeout)
