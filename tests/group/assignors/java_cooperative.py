"""Kafka's cooperative sticky assignor in a Java process, and random groups whose members own partitions."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from asyncgroup.config import ConsumerConfig
from asyncgroup.group.assignors import MemberSubscription
from asyncgroup.group.assignors.cooperative import CooperativeStickyAssignor
from asyncgroup.group.classic.join_requests import build_join
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import MemberIdentity
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode_versioned, encode_versioned
from tests.group.assignors.java_plans import make_case
from tests.group.assignors.java_program import JavaProgram, partitions_in

__all__ = [
    "CooperativeCase",
    "CooperativeOracle",
    "JavaAnswer",
    "claimed_case",
    "encode_subscription",
    "is_sound",
    "owning",
]

Plan = dict[str, list[TopicPartition]]


class CooperativeCase(NamedTuple):
    """The input of a cooperative assignor."""

    members: list[MemberSubscription]
    counts: dict[str, int]
    versions: Mapping[str, int] = {}
    """The version of a member's subscription, by member id; 3 if it is missing."""

    @property
    def has_equal_subscriptions(self) -> bool:
        """Whether all members subscribe to the same topics."""
        return len({frozenset(member.topics) for member in self.members}) <= 1

    def lines(self) -> list[str]:
        """Return the case in the format of the Java program; as a leader does, without topics of no member."""
        topics = {topic for member in self.members for topic in member.topics}
        return [
            *(f"topic {topic} {count}" for topic, count in self.counts.items() if topic in topics),
            *(
                f"member {member.member_id} {member.group_instance_id or '-'} "
                f"{encode_subscription(member, self.versions.get(member.member_id, 3)).hex()}"
                for member in self.members
            ),
        ]


class JavaAnswer(NamedTuple):
    """What Java makes of a case. Its general algorithm fails for a few groups; then there is no plan."""

    subscriptions: dict[str, list[bytes]]
    """By member id: its subscription in the versions 0 to 3."""
    whole: Plan
    """The assignment before partitions are withheld."""
    plan: Plan
    user_data: dict[str, tuple[bytes, bytes]]
    """By member id: before and after the assignment in generation 7."""


class CooperativeOracle(JavaProgram):
    """Kafka's assignor in a Java process that runs for the `with` block."""

    def __init__(self, jars: Iterable[Path]) -> None:
        super().__init__("cooperative", jars)

    def answer(self, case: CooperativeCase) -> JavaAnswer:
        """Return what Java makes of this case."""
        found = JavaAnswer({}, {}, {}, {})
        for line in self.ask(case.lines()):
            kind, member, *words = line.split()
            if kind == "subscription":
                found.subscriptions[member] = [bytes.fromhex(word) for word in words]
            elif kind == "userdata":
                found.user_data[member] = (bytes.fromhex(words[0]), bytes.fromhex(words[1]))
            elif kind != "failed":
                plan = found.whole if kind == "whole" else found.plan
                plan[member] = partitions_in(words)
        return (
            found if is_sound(case.members, case.counts, found.whole) else found._replace(whole={}, plan={})
        )


def is_sound(members: Iterable[MemberSubscription], counts: Mapping[str, int], plan: Plan) -> bool:
    """Whether members only get partitions that exist, of topics that they subscribe to."""
    topics = {member.member_id: set(member.topics) for member in members}
    return all(
        tp.topic in topics[member] and tp.partition < counts.get(tp.topic, 0)
        for member, partitions in plan.items()
        for tp in partitions
    )


def encode_subscription(member: MemberSubscription, version: int) -> bytes:
    """Return the metadata that this member sends in JoinGroup, in this version."""
    config = ConsumerConfig(rack_id=member.rack_id or "")
    identity = MemberIdentity(member.member_id, member.generation_id, member.group_instance_id)
    (protocol,) = build_join(
        "g",
        identity,
        config,
        {CooperativeStickyAssignor.name: member.user_data},
        member.topics,
        "",
        member.owned,
    ).protocols
    return encode_versioned(decode_versioned(m.ConsumerProtocolSubscription, protocol.metadata), version)


def owning(
    members: Iterable[MemberSubscription], plan: Mapping[str, Iterable[TopicPartition]], generation: int
) -> list[MemberSubscription]:
    """Return the members with what they own after this plan; those that it lacks own nothing."""
    return [
        replace(
            member,
            owned=tuple(plan[member.member_id]),
            generation_id=generation,
            user_data=generation.to_bytes(4, signed=True),
        )
        if member.member_id in plan
        else member
        for member in members
    ]


def claimed_case(rng: random.Random) -> CooperativeCase:
    """Return a random group in any state: owned partitions of older generations, contested, of members that are gone.

    Members own partitions of topics that they no longer subscribe to, and of topics that were deleted.
    """
    members, counts, _ = make_case(rng)
    generations = {member: rng.choice([5, 5, 5, 5, 4, 3, -1]) for member, _, _ in members}
    owned: dict[str, list[TopicPartition]] = {member: [] for member, _, _ in members}
    ids, lost, contested = list(owned), rng.random() / 2, rng.random() / 2
    for topic in [*counts, "deleted"]:
        for number in range(counts.get(topic, 2)):
            if rng.random() < lost:  # by a member that is gone
                continue
            for member in rng.sample(
                ids, min(len(ids), 1 + (rng.random() < contested) + (rng.random() < 0.05))
            ):
                subscribes = topic in next(topics for each, _, topics in members if each == member)
                if subscribes or rng.random() < 0.3:
                    owned[member].append(TopicPartition(topic, number))
    found = [
        MemberSubscription(
            member,
            tuple(topics),
            instance,
            generations[member].to_bytes(4, signed=True),
            tuple(owned[member]) if generations[member] >= 0 else (),
            generations[member],
            rng.choice([None, None, "rack-1"]),
        )
        for member, instance, topics in members
    ]
    return CooperativeCase(found, counts)
