"""Assignments by Kafka's own assignors: stored ones, and a Java process that computes more.

`python -m tests.group.assignors.java_plans` regenerates java_plans.json, and downloads Kafka's jars if necessary.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from asyncgroup.group.assignors import MemberSubscription
from asyncgroup.group.assignors.sticky_user_data import MemberData, encode_member_data
from asyncgroup.model import TopicPartition
from asyncgroup.testing.apache_kafka.jars import kafka_jars
from tests.group.assignors.java_program import JavaProgram, partitions_in

__all__ = ["Case", "JavaOracle", "Plans", "make_case", "next_case", "stored"]

HERE = Path(__file__).parent
STORED = HERE / "java_plans.json"

Plan = dict[str, list[TopicPartition]]

Plans = dict[str, Plan]
"""By the assignor's name, then by member id."""


class Case(NamedTuple):
    """The input of an assignor: a group and its topics."""

    members: list[tuple[str, str | None, list[str]]]
    """(member id, group instance id, topics)."""
    counts: dict[str, int]
    """Partition counts of the topics that exist."""
    claims: Mapping[str, MemberData] = {}
    """For the sticky assignor: the partitions that members owned before."""

    def subscriptions(self) -> list[MemberSubscription]:
        """Return the members as an assignor receives them."""
        return [
            MemberSubscription(member, tuple(topics), instance, self._user_data(member))
            for member, instance, topics in self.members
        ]

    def _user_data(self, member: str) -> bytes | None:
        return encode_member_data(self.claims[member]) if member in self.claims else None

    def lines(self) -> list[str]:
        """Return the case in the format of the Java program."""
        topics = [f"topic {topic} {count}" for topic, count in self.counts.items()]
        members = [
            f"member {member} {instance or '-'} {','.join(names) or '-'} "
            f"{self.claims.get(member, MemberData()).generation} {(self._user_data(member) or b'').hex() or '-'}"
            for member, instance, names in self.members
        ]
        return [*topics, *members]


def make_case(rng: random.Random) -> Case:
    """Return a random group: static members, unequal subscriptions, topics without subscribers or missing."""
    names = [f"t{number}" for number in rng.sample(range(1, 25), rng.randint(1, 6))]
    counts = {name: rng.choice([1, 2, 3, 4, 7, 12, 25]) for name in names if rng.random() < 0.85}
    same_topics = rng.random() < 0.5
    ids = rng.sample(range(1, 120), rng.randint(1, 9))
    members = []
    for number in ids:
        topics = names if same_topics else rng.sample(names, rng.randint(0, len(names)))
        instance = f"i{rng.randint(1, 9)}-{number}" if rng.random() < 0.3 else None
        members.append((f"m{number}", instance, list(topics)))
    return Case(members, counts)


def next_case(rng: random.Random, case: Case, plan: Plan, generation: int) -> Case:
    """Return the group after random events, where its members had this assignment in this generation.

    Members join, leave and change their subscription; topics grow, are created and deleted; a member has missed this
    generation or has lost its state; two members claim the same partitions.
    """
    members, counts, topics = list(case.members), dict(case.counts), [name for name, _ in case.counts.items()]
    claims = {member: MemberData(tuple(plan[member]), generation) for member, _, _ in members}
    for event in range(rng.randint(1, 3)):
        which = rng.randrange(len(members)) if members else None
        match rng.choice(
            ["join", "join", "leave", "leave", "grow", "new", "gone", "topics", "missed", "clash"]
        ):
            case "leave" if len(members) > 1 and which is not None:
                members.pop(which)
            case "grow" if topics:
                counts[rng.choice(topics)] += rng.randint(1, 5)
            case "new":
                counts[f"n{generation}"] = rng.randint(1, 9)
                members = [(m, instance, [*those, f"n{generation}"]) for m, instance, those in members]
            case "gone" if len(counts) > 1:
                counts.pop(rng.choice(sorted(counts)))
            case "topics" if which is not None:
                member, instance, those = members[which]
                members[which] = member, instance, rng.sample(those, rng.randint(0, len(those)))
            case "missed" if which is not None:
                claims[members[which][0]] = case.claims.get(members[which][0], MemberData())
            case "clash" if which is not None:
                claims[members[which][0]] = claims.get(rng.choice(members)[0], MemberData())
            case _:
                model = rng.choice(members)[2] if members else topics
                members.append((f"j{generation}-{event}", None, list(model)))
        topics = sorted(counts)
    return Case(members, counts, {m: claims[m] for m, _, _ in members if m in claims})


class JavaOracle(JavaProgram):
    """Kafka's assignors in a Java process that runs for the `with` block."""

    def __init__(self, jars: Iterable[Path]) -> None:
        super().__init__("eager", jars)
        self.user_data: dict[str, bytes] = {}
        """User data of Java's sticky assignor by member, for its assignment of the last case in generation 7."""

    def plans(self, case: Case) -> Plans:
        """Return the assignments of this case by Kafka's classes.

        The sticky assignor's is left out where it is wrong: it throws NullPointerException for a few groups with
        unequal subscriptions, and it may assign partitions to a member without a subscription.
        """
        plans: Plans = {}
        self.user_data = {}
        for line in self.ask(case.lines()):
            name, member, *partitions = line.split()
            if name == "failed":
                continue
            if name == "userdata":
                self.user_data[member] = bytes.fromhex(partitions[0])
                continue
            plans.setdefault(name, {})[member] = partitions_in(partitions)
        return plans if _is_sound(case, plans.get("sticky")) else _without_sticky(plans)


def _is_sound(case: Case, plan: Plan | None) -> bool:
    """Whether members only get partitions of topics that they subscribe to."""
    topics = {member: set(those) for member, _, those in case.members}
    return plan is not None and all(tp.topic in topics[member] for member, tps in plan.items() for tp in tps)


def _without_sticky(plans: Plans) -> Plans:
    return {name: plan for name, plan in plans.items() if name != "sticky"}


def stored() -> list[tuple[Case, Plans]]:
    """Return the stored cases with Java's assignments."""
    found = []
    for entry in json.loads(STORED.read_text()):
        members = [(member, instance, topics) for member, instance, topics in entry["members"]]
        plans = {
            name: {member: _partitions(tps) for member, tps in plan.items()}
            for name, plan in entry["plans"].items()
        }
        claims = {
            member: MemberData(tuple(_partitions(tps)), generation)
            for member, (tps, generation) in entry.get("claims", {}).items()
        }
        found.append((Case(members, entry["counts"], claims), plans))
    return found


def _partitions(pairs: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, number in pairs]


def _write() -> None:
    rng = random.Random(848)
    entries: list[dict[str, Any]] = []

    with JavaOracle(sorted(kafka_jars().glob("*.jar"))) as java:
        for number in range(60):
            case = make_case(rng)
            for generation in range(1, 2 + 3 * (number % 3 == 0)):
                plans = java.plans(case)
                if "sticky" not in plans:
                    break
                if case.claims:
                    plans = {"sticky": plans["sticky"]}
                entries.append(
                    {"members": case.members, "counts": case.counts, "claims": case.claims, "plans": plans}
                )
                case = next_case(rng, case, plans["sticky"], generation)
    STORED.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n")


if __name__ == "__main__":
    _write()
