"""How a member is, as a value for people on call and for probes; nothing here waits or asks anybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncgroup.escaping import MAX_TEXT_LENGTH, printable
from asyncgroup.model import TopicPartition

__all__ = ["ClaimHealth", "ErrorSeen", "Health"]


@dataclass(frozen=True, slots=True)
class ClaimHealth:
    """One claim: `position` is the next offset to hand out, `next_mark` the first that is not marked as done.

    `high_water_mark` and `lag` are None before the first fetch. Both offsets and the lag count records.
    """

    topic: str
    partition: int
    position: int
    next_mark: int
    high_water_mark: int | None
    lag: int | None
    stalled: bool
    paused: bool

    @property
    def tp(self) -> TopicPartition:
        """Topic and partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class ErrorSeen:
    """One kind of error: the newest text, how often it came since the group object was made, seconds since the last."""

    text: str
    count: int
    age: float

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"{self.text} ({times}, last {self.age:.1f} s ago)"


@dataclass(frozen=True, slots=True)
class Health:
    """A picture of a group member, taken by `ConsumerGroup.health()`; it does not change afterwards.

    - `state`: what the member is about: `closed`, `not consuming`, `looking up topics`, `looking for the coordinator`,
      `joining`, `syncing`, `starting`, `stable`, `draining`, `committing`, `waiting to join again`, `leaving`;
      `state_age` for how many seconds.
    - `member_id`, `generation_id`: of the last join; a member that is on its way to the next one still has them.
    - `last_heartbeat`, `last_fetch`: seconds since a broker last answered one; None if none ever did.
    - `waits_for`: what the member waits for, in words, and for how long; None if it waits for nothing.
    - `problems`: what is wrong now, in words, also that nothing consumes. The exception with which a handler failed is
      one, with its type, topic, partition and offset, until a later session is stable.
    - `errors`: what went wrong so far, newest first, at most five kinds.
    - `is_healthy`: the member consumes, or is on its way to by the ordinary course, and there are no `problems`. Stalled
      and paused claims and a slow group that rebalances are no illness.
    """

    group_id: str
    state: str
    state_age: float
    member_id: str
    generation_id: int
    last_heartbeat: float | None
    last_fetch: float | None
    claims: tuple[ClaimHealth, ...]
    waits_for: str | None
    problems: tuple[str, ...]
    errors: tuple[ErrorSeen, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    @property
    def lag(self) -> int:
        """Records of all claims together between position and high water mark, as far as known."""
        return sum(claim.lag or 0 for claim in self.claims)

    @property
    def stalled(self) -> tuple[TopicPartition, ...]:
        """Claims whose handler took nothing for `max_processing_time` while records waited."""
        return tuple(claim.tp for claim in self.claims if claim.stalled)

    @property
    def paused(self) -> tuple[TopicPartition, ...]:
        """Claims that the user has paused."""
        return tuple(claim.tp for claim in self.claims if claim.paused)

    def as_dict(self) -> dict[str, Any]:
        """The same in dicts, lists, text and numbers, ready for JSON."""
        return {
            "group_id": self.group_id,
            "is_healthy": self.is_healthy,
            "state": self.state,
            "state_age": round(self.state_age, 3),
            "member_id": self.member_id,
            "generation_id": self.generation_id,
            "last_heartbeat": _rounded(self.last_heartbeat),
            "last_fetch": _rounded(self.last_fetch),
            "lag": self.lag,
            "stalled": [str(tp) for tp in self.stalled],
            "paused": [str(tp) for tp in self.paused],
            "waits_for": self.waits_for,
            "problems": list(self.problems),
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
                f"member {printable(self.member_id, MAX_TEXT_LENGTH)}, generation {self.generation_id}"
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
        # a broker's own words may have more lines; a person on call reads one
        return " ".join("; ".join(parts).split())

    def __repr__(self) -> str:
        return f"<Health {'well' if self.is_healthy else 'NOT WELL'}: {self}>"


def _rounded(age: float | None) -> float | None:
    return None if age is None else round(age, 3)
