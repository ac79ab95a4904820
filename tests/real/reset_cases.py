"""Random resets of offsets, by `Admin` and by Kafka's own `ConsumerGroupCommand` beside it: the same plan and the same outcome.

Two groups of the same kind get the same commits. One is reset by `Admin`, the other by the command, in one JVM for all cases
(`Tools.java`). The command has written its plan as CSV then, or an error.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from asyncgroup import Producer, TopicPartition
from asyncgroup.ack_window import AckWindow
from asyncgroup.admin import Admin, GroupOffset, NewTopic, ResetRefused, ShiftBy, parse_offsets_csv
from asyncgroup.errors import ConfigError
from asyncgroup.offsets.commit_metadata import CommitMetadata, encode_metadata
from asyncgroup.offsets.window_encoding import encode_window
from tests.interop.java_tools import JavaTools

__all__ = ["ACTIVE", "LEADERLESS", "NO_ROWS", "Case", "ResetScene", "scene", "unique"]

HOUR = timedelta(hours=1)
GROUP = "<group>"
"""Stands for the id of either group in a file."""
_ROW = re.compile(r'("[^"]+"|[^",]+),\d+,\d+')

MISSING, LEADERLESS, NO_COMMIT, ACTIVE, NO_ROWS, TIMEOUT = (
    *("missing", "leaderless", "no commit", "active", "no rows"),
    "missing or leaderless, found by a timeout",
)
OURS = {
    "does not exist": MISSING,
    "no leader": LEADERLESS,
    "no committed offset": NO_COMMIT,
    "state Stable": ACTIVE,
    "one row of group": NO_ROWS,
}
THEIRS = {
    "do not exist": MISSING,
    "does not host this topic-partition": MISSING,
    "have no leader": LEADERLESS,
    "no current committed offset": NO_COMMIT,
    "the current state is Stable": ACTIVE,
    "No reset plan for group": NO_ROWS,
    "TimeoutException": TIMEOUT,
}
"""Words of a refusal → its reason."""
INSTEAD = {TIMEOUT: {MISSING, LEADERLESS, ACTIVE}, ACTIVE: {NO_ROWS}}
"""Ours in place of theirs: partitions of a file are looked up, and a file is read before the group is described."""

LIMIT_MS, SHORT_LIMIT_MS = "60000", "3000"
"""How long the command tries: shorter for a file with a partition that does not exist or has no leader, which it looks up until then."""


@dataclass
class Case:
    """A reset in the arguments of both; either may be refused."""

    target: Any
    scope: dict[str, Any]
    options: list[str]
    committed: dict[TopicPartition, GroupOffset]
    text: str = ""
    """The rows of the file, in place of a target."""


@dataclass
class ResetScene:
    """Topics on a Kafka, and what the cases need."""

    admin: Admin
    tools: JavaTools
    servers: str
    path: Path
    start: datetime
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    missing: list[TopicPartition] = field(default_factory=list)
    """Partitions that do not exist, or have no leader."""

    # --- topics -----------------------------------------------------------------------------------------------------

    async def create(
        self,
        counts: Mapping[str, list[int]],
        deleted: Mapping[TopicPartition, int | None],
        nodes: Sequence[int],
    ) -> None:
        """Create topics of one replica each with this many records in each partition, one an hour up to an hour ago."""
        topics = {name: _spread(len(numbers), nodes) for name, numbers in counts.items()}
        (await self.admin.create_topics(topics)).raise_first()
        async with Producer(self.servers) as producer:
            for name, numbers in counts.items():
                for partition, count in enumerate(numbers):
                    self.ends[TopicPartition(name, partition)] = count
                    for n in range(count):
                        timestamp = round((self.start - (count - n) * HOUR).timestamp() * 1000)
                        await producer.enqueue(name, b"x", partition=partition, timestamp=timestamp)
            await producer.flush()
        (await self.admin.delete_records(deleted)).raise_first()

    # --- cases ------------------------------------------------------------------------------------------------------

    def case(self, rng: random.Random) -> Case:
        committed = {tp: self._commit(rng, tp) for tp in self.ends if rng.random() < 0.6}
        scope, options = self._scope(rng)
        kinds = ["earliest", "latest", "current", "offset", "shift", "datetime", "duration", "file"]
        kind = rng.choice(kinds)
        made = getattr(self, f"_{kind}")(rng)
        if isinstance(made, str):
            return Case(None, {}, ["--from-file", str(self.path)], committed, made)
        target, how = made
        return Case(target, scope, [*options, *how], committed)

    def _commit(self, rng: random.Random, tp: TopicPartition) -> GroupOffset:
        offset = rng.randint(0, self.ends[tp] + 3)
        window = encode_window(AckWindow(offset, [(offset + 2, offset + 5)]), offset, 1000).text
        text = rng.choice(["", "text", "window", "window", "copied"])
        if text in ("window", "copied"):
            sealed_at = offset if text == "window" else offset + 1
            text = encode_metadata(tp, sealed_at, CommitMetadata("t", UUID(int=1), window))
        return GroupOffset(offset, text)

    def _scope(self, rng: random.Random) -> tuple[dict[str, Any], list[str]]:
        if rng.random() < 0.3:
            return {}, ["--all-topics"]
        names = sorted({tp.topic for tp in self.ends})
        topics = rng.sample(names, rng.randint(0, len(names) - 1))
        if rng.random() < 0.05:
            topics.append("nothing")
        places = rng.sample(sorted(self.ends), rng.randint(0 if topics else 1, 3))
        if rng.random() < 0.15:
            places.append(rng.choice(self.missing))
        places = [
            tp for tp in dict.fromkeys(places) if tp.topic not in topics
        ]  # the command fails at one that is named twice
        if not topics and not places:
            return {}, ["--all-topics"]
        options = [part for name in topics for part in ("--topic", name)]
        for name in dict.fromkeys(tp.topic for tp in places):
            numbers = ",".join(str(tp.partition) for tp in places if tp.topic == name)
            options += ["--topic", f"{name}:{numbers}"]
        return {"topics": topics or None, "partitions": places or None}, options

    def _earliest(self, _: random.Random) -> tuple[Any, list[str]]:
        return "earliest", ["--to-earliest"]

    def _latest(self, _: random.Random) -> tuple[Any, list[str]]:
        return "latest", ["--to-latest"]

    def _current(self, _: random.Random) -> tuple[Any, list[str]]:
        return "current", ["--to-current"]

    def _offset(self, rng: random.Random) -> tuple[Any, list[str]]:
        offset = rng.randint(0, 15)
        return offset, ["--to-offset", str(offset)]

    def _shift(self, rng: random.Random) -> tuple[Any, list[str]]:
        number = rng.randint(-12, 12)
        return ShiftBy(number), ["--shift-by", str(number)]

    def _datetime(self, rng: random.Random) -> tuple[Any, list[str]]:
        when = self.start - rng.randint(-1, 15) * HOUR + rng.choice([-1, 0, 1]) * timedelta(milliseconds=1)
        zone, hours = rng.choice([("", 0), ("Z", 0), ("+02:00", 2), ("-0500", -5)])
        text = (when + hours * HOUR).replace(tzinfo=None).isoformat(timespec="milliseconds")
        return when, ["--to-datetime", text + zone]

    def _duration(self, rng: random.Random) -> tuple[Any, list[str]]:
        hours = rng.randint(0, 15)
        return hours * HOUR + HOUR / 2, ["--by-duration", f"PT{hours}H30M"]

    def _file(self, rng: random.Random) -> str:
        places = rng.sample(sorted(self.ends), rng.randint(1, 4))
        if rng.random() < 0.1:
            places.append(rng.choice(self.missing))
        prefix = rng.choice(["", f"{GROUP},", f"{GROUP},", "other,"])
        return "".join(
            f"{prefix}{tp.topic},{tp.partition},{rng.randint(0, 15)}\n" for tp in dict.fromkeys(places)
        )

    # --- both tools ---------------------------------------------------------------------------------------------------

    async def compare(self, case: Case, ours: str, theirs: str) -> str:
        """Reset group `ours` by Admin and `theirs` by the command; return "" if both did it, else why both refused."""
        if ours != theirs:
            for group_id in (ours, theirs):
                await self._commit_exactly(group_id, case.committed)
        before = await self.committed(theirs)
        rows, reason = await self._theirs(case, theirs)
        after = await self.committed(theirs)
        plan, reasons = await self._ours(case, ours)
        assert plan == rows, (case, reasons, reason)
        assert await self.committed(ours) == after, case
        if plan is None:
            assert after == before, case
            assert reason in reasons or reasons & INSTEAD.get(reason, set()), (reason, reasons, case)
        return reason

    async def _commit_exactly(self, group_id: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        if old := await self.admin.list_group_offsets(group_id):
            (await self.admin.delete_group_offsets(group_id, old)).raise_first()
        (await self.admin.alter_group_offsets(group_id, offsets)).raise_first()

    async def committed(self, group_id: str) -> Mapping[TopicPartition, GroupOffset]:
        return (await self.admin.list_group_offsets(group_id)).raise_first()

    async def _ours(self, case: Case, group_id: str) -> tuple[list[str] | None, set[str]]:
        """Plan and reset; return the rows of the plan, or None and the reasons of its refusal."""
        try:
            target = (
                parse_offsets_csv(case.text.replace(GROUP, group_id), group_id) if case.text else case.target
            )
            plan = await self.admin.plan_reset(group_id, target, **case.scope)
        except ResetRefused as error:
            return None, {_reason(f"{name}: {text}", OURS) for name, text in error.reasons.items()}
        except ConfigError as error:
            return None, {_reason(str(error), OURS)}
        for tp, each in plan.partitions.items():
            old = case.committed.get(tp)
            assert each.clears_metadata == bool(old and old.metadata)
        done = (await self.admin.reset_offsets(plan)).raise_first()
        assert done == plan.offsets
        return sorted(plan.to_csv().splitlines()), set()

    async def _theirs(self, case: Case, group_id: str) -> tuple[list[str] | None, str]:
        """Return the rows that the command exported, or None and why it failed: it exits with 0 after most errors."""
        self.path.write_text(case.text.replace(GROUP, group_id))
        is_looked_up = any(f"{tp.topic},{tp.partition}," in case.text for tp in self.missing)
        limit = SHORT_LIMIT_MS if is_looked_up else LIMIT_MS
        output = await self.tools(
            *("kafka-consumer-groups", "--bootstrap-server", self.servers, "--timeout", limit),
            *("--group", group_id, "--reset-offsets", "--execute", "--export", *case.options),
        )
        if output.code or any(line.startswith("Error: ") for line in output.lines):
            return None, _reason(output.text, THEIRS)
        # beside them warnings, and the stack trace of its attempt to read rows with a group as rows without one
        return sorted(line for line in output.lines if _ROW.fullmatch(line)), ""


def _reason(text: str, words: Mapping[str, str]) -> str:
    """Return the reason of a refusal, by the words of its message."""
    return next((reason for each, reason in words.items() if each in text), text)


def _spread(partitions: int, nodes: Sequence[int]) -> NewTopic:
    """Return a topic of one replica, on these nodes in turn; on the controller's choice if there are none."""
    if not nodes:
        return NewTopic(partitions, 1)
    return NewTopic(assignments=[[nodes[n % len(nodes)]] for n in range(partitions)])


def scene(admin: Admin, tools: JavaTools, servers: str, path: Path) -> ResetScene:
    """Return a scene without topics."""
    return ResetScene(admin, tools, servers, path, datetime.now(UTC).replace(microsecond=0))


def unique(name: str) -> str:
    """Return a name that no other test has."""
    return f"{name}-{uuid4().hex[:8]}"
