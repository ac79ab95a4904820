"""Plans of Kafka's own assignors: stored ones, and the way to make more.

`python -m tests.group.java_plans` writes java_plans.json anew, and fetches Kafka's jars if they are not at hand.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from asyncgroup.java import require_java
from asyncgroup.model import TopicPartition
from asyncgroup.testing.kafka_jars import kafka_jars

__all__ = ["Case", "Plans", "ask_java", "make_case", "stored"]

HERE = Path(__file__).parent
STORED = HERE / "java_plans.json"

Plans = dict[str, dict[str, list[TopicPartition]]]
"""By the assignor's name, then by member id."""


class Case(NamedTuple):
    """A group: (member id, instance id, topics) of its members, and the partition counts of the topics that exist."""

    members: list[tuple[str, str | None, list[str]]]
    counts: dict[str, int]

    def lines(self) -> list[str]:
        """The case as the Java program reads it."""
        topics = [f"topic {topic} {count}" for topic, count in self.counts.items()]
        members = [
            f"member {member} {instance or '-'} {','.join(names) or '-'}"
            for member, instance, names in self.members
        ]
        return [*topics, *members, "end"]


def make_case(rng: random.Random) -> Case:
    """A group with anything that matters: static members, topics not subscribed to by all, by none, or not there."""
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


def ask_java(cases: Iterable[Case], jars: Iterable[Path]) -> list[Plans]:
    """The plans that Kafka's own classes make of these cases."""
    java = require_java("run Kafka's assignors")
    text = "\n".join(line for case in cases for line in case.lines()) + "\n"
    command = [str(java.executable), "-cp", ":".join(map(str, jars)), str(HERE / "PlanOracle.java")]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=100, check=True)
    plans: list[Plans] = [{}]
    for line in done.stdout.splitlines():
        name, *words = line.split(" ")
        if name == "end":
            plans.append({})
            continue
        member, *partitions = words
        pairs = (partition.split(":") for partition in partitions)
        # in which order a member's partitions are listed is a matter of Java's hash maps, and means nothing
        plans[-1].setdefault(name, {})[member] = sorted(TopicPartition(topic, int(p)) for topic, p in pairs)
    return plans[:-1]


def stored() -> list[tuple[Case, Plans]]:
    """The stored cases with Java's plans."""
    found = []
    for entry in json.loads(STORED.read_text()):
        members = [(member, instance, topics) for member, instance, topics in entry["members"]]
        plans = {
            name: {member: [TopicPartition(*tp) for tp in tps] for member, tps in plan.items()}
            for name, plan in entry["plans"].items()
        }
        found.append((Case(members, entry["counts"]), plans))
    return found


def _write() -> None:
    rng = random.Random(848)
    cases = [make_case(rng) for _ in range(60)]
    plans = ask_java(cases, sorted(kafka_jars().glob("*.jar")))
    entries: list[dict[str, Any]] = [
        {"members": case.members, "counts": case.counts, "plans": plan}
        for case, plan in zip(cases, plans, strict=True)
    ]
    STORED.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n")


if __name__ == "__main__":
    _write()
