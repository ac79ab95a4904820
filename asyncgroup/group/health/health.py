"""Health: a snapshot of a group member, as a value for operators and probes. `member_health` makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncgroup.escaping import MAX_TEXT_LENGTH, printable
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.model import TopicPartition

__all__ = ["ClaimHealth", "ErrorSeen", "Health"]


@dataclass(frozen=True, slots=True)
class ClaimHealth:
    """The progress of one claim. `high_watermark` and `lag` are None before the first fetch."""

    topic: str
    partition: int
    position: int
    """The offset of the next record to return to the handler."""
    next_mark: int
    """The first offset that is not marked as done."""
    high_watermark: int | None
    lag: int | None
    """Offsets from the position to the high watermark, with `read_committed` to the last stable offset."""
    stalled: bool
    paused: bool

    @property
    def tp(self) -> TopicPartition:
        """Topic and partition."""
        return TopicPartition(self.topic, self.partition)


add_foreign_names(ClaimHealth, {"high_water_mark": "claim.high_watermark"})


@dataclass(frozen=True, slots=True)
class ErrorSeen:
    """One kind of error, counted since the group object was created."""

    text: str
    """The text of the newest one."""
    count: int
    age: float
    """Seconds since the newest one."""

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"{self.text} ({times}, last {self.age:.1f} s ago)"


@dataclass(frozen=True, slots=True)
class Health:
    """A snapshot of a group member, returned by `ConsumerGroup.health()`.

    - `state`: one of `closed`, `not consuming`, `looking up topics`, `looking for the coordinator`, `joining`,
      `syncing`, `starting`, `stable`, `draining`, `committing`, `waiting to join again`, `leaving`; `state_age` is its
      age in seconds. That of a queue on a subscription of Pulsar is `connecting`, `stable` or `closed`, and what only a group has is
      empty. States of a join begin again with each of its attempts; `waits_for` has the age of the whole join.
    - `member_id`, `generation_id`: of the last join, also while the member rejoins.
    - `group_protocol`: `classic` or `consumer`; with `auto` the one chosen for the last join, `classic` before the first.
    - `last_heartbeat`, `last_fetch`: seconds since the last response to one; None if there was none.
    - `waits_for`: what the member waits for and for how long, in words; None if it waits for nothing.
    - `problems`: what is wrong now, in words, including that nothing consumes. Those of the member are MemberProblems, with kind and
      numbers. A handler's exception, with its type, topic, partition and offset, and the loss of the membership are problems
      until a later session is stable; a partition that cannot start, and a topic that does not exist, until it can be read;
      a hook that was cancelled at its limit while it still runs, and for 10 s.
    - `errors`: the last kinds of errors, newest first, at most five.
    - `fatal`: why only a restart of the process helps, in words: `run()` has raised an error and was not called again, or a claim
      has held a record for `max_poll_interval` without progress. None while brokers do not answer, in a rebalance, with any lag.
    - `not_ready`: why the member does not take part in its group, in words: it has not joined, its membership was lost, or no
      broker has answered for the session timeout. None for a member without partitions, and in a rebalance.
    - `is_healthy`: whether there are no `problems`: the member consumes or is about to. Stalled or paused claims and a
      slow rebalance are no problems.
    """

    group_id: str
    state: str
    state_age: float
    member_id: str
    generation_id: int
    group_protocol: str
    last_heartbeat: float | None
    last_fetch: float | None
    claims: tuple[ClaimHealth, ...]
    waits_for: str | None
    problems: tuple[str, ...]
    errors: tuple[ErrorSeen, ...]
    fatal: str | None = None
    not_ready: str | None = None

    @property
    def live(self) -> bool:
        """Whether the process should go on, for liveness probes: nothing is `fatal`.

        A blocked event loop cannot say so: a probe that runs on it gets no answer.
        """
        return self.fatal is None

    @property
    def ready(self) -> bool:
        """Whether the member takes part in its group, for readiness probes: nothing is `not_ready`."""
        return self.not_ready is None

    @property
    def is_healthy(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    @property
    def lag(self) -> int:
        """The sum of the known lags of all claims."""
        return sum(claim.lag or 0 for claim in self.claims)

    @property
    def stalled(self) -> tuple[TopicPartition, ...]:
        """Claims whose handler read no record for `max_processing_time` while some were buffered."""
        return tuple(claim.tp for claim in self.claims if claim.stalled)

    @property
    def paused(self) -> tuple[TopicPartition, ...]:
        """Claims that the user paused."""
        return tuple(claim.tp for claim in self.claims if claim.paused)

    def as_dict(self) -> dict[str, Any]:
        """Return the health as dicts, lists, strings and numbers, ready for JSON."""

        def rounded(age: float | None) -> float | None:
            return None if age is None else round(age, 3)

        return {
            "group_id": self.group_id,
            "is_healthy": self.is_healthy,
            "live": self.live,
            "ready": self.ready,
            "state": self.state,
            "state_age": round(self.state_age, 3),
            "member_id": self.member_id,
            "generation_id": self.generation_id,
            "group_protocol": self.group_protocol,
            "last_heartbeat": rounded(self.last_heartbeat),
            "last_fetch": rounded(self.last_fetch),
            "lag": self.lag,
            "stalled": [str(tp) for tp in self.stalled],
            "paused": [str(tp) for tp in self.paused],
            "waits_for": self.waits_for,
            # plain strings: some encoders accept no subclass
            "problems": list(map(str, self.problems)),
            "fatal": self.fatal,
            "not_ready": self.not_ready and str(self.not_ready),
            "errors": [{"text": e.text, "count": e.count, "age": round(e.age, 3)} for e in self.errors],
            "claims": [
                {name: getattr(claim, name) for name in ClaimHealth.__dataclass_fields__}
                for claim in self.claims
            ],
        }

    def __str__(self) -> str:
        parts = [f"{printable(self.group_id)}: {self.state} for {self.state_age:.1f} s"]
        if self.member_id:
            parts.append(
                f"member {printable(self.member_id, MAX_TEXT_LENGTH)}, generation {self.generation_id}, "
                f"{self.group_protocol} protocol"
            )
        for what, age in (("heartbeat", self.last_heartbeat), ("fetch", self.last_fetch)):
            if age is not None:
                parts.append(f"last {what} {age:.1f} s ago")
        count = len(self.claims)
        parts.append(f"{count} claim{'s' * (count != 1)}, lag {self.lag}")
        parts += [
            f"{word} {', '.join(map(str, tps))}"
            for word, tps in (("stalled", self.stalled), ("paused", self.paused))
            if tps
        ]
        if self.waits_for is not None:
            parts.append(f"waits for {self.waits_for}")
        parts += [f"wrong: {problem}" for problem in self.problems]
        if self.errors:
            parts.append(f"last error: {self.errors[0]}")
        # a broker's error message may have several lines; this is one line for logs
        return " ".join("; ".join(parts).split())

    def __repr__(self) -> str:
        return f"<Health {'well' if self.is_healthy else 'NOT WELL'}: {self}>"
