"""Probes: one judgement about all clients of a process, from their `health()`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from asyncgroup.group.health.health import Health

__all__ = ["HasHealth", "ProbeAnswer", "live", "ready", "without_closed"]


class HasHealth(Protocol):
    """A client with a health: a ConsumerGroup or a WorkQueue."""

    def health(self) -> Health:
        """Return the health now."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The answer of a probe."""

    passed: bool
    reasons: Sequence[str]
    """Why it did not pass, in words, each with its group; empty if it did."""

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a dict, ready for JSON."""
        return {"passed": self.passed, "reasons": list(self.reasons)}


def live(clients: Iterable[HasHealth]) -> ProbeAnswer:
    """Return whether the process should go on: no client says that only a restart helps (`Health.fatal`).

    Brokers that do not answer, rebalances and lag are no reasons: with those all replicas would be restarted at once, and their
    joins would make the outage longer. Call it in the event loop of the clients: if that is blocked, a probe gets no answer.
    """
    return _result((health.group_id, health.fatal) for health in map(_health, clients))


def ready(clients: Iterable[HasHealth]) -> ProbeAnswer:
    """Return whether each client takes part in its group, with or without partitions (`Health.not_ready`)."""
    return _result((health.group_id, health.not_ready) for health in map(_health, clients))


def without_closed(clients: Iterable[HasHealth], replaced_by: HasHealth | None = None) -> list[HasHealth]:
    """Return the clients that are not closed, and those that were closed after a fatal error: nothing does their work now.

    `replaced_by` is another client, which does the work of those of its group.
    """
    group_id = None if replaced_by is None else _state(replaced_by)[0]
    return [each for each in clients if not _is_over(each, group_id)]


def _is_over(client: HasHealth, replaced: str | None) -> bool:
    group_id, state, fatal = _state(client)
    return state == "closed" and (fatal is None or group_id == replaced)


def _state(client: HasHealth) -> tuple[str | None, str, str | None]:
    """Return group, state and fatal error; a health that raises is one that the probe reports."""
    try:
        health = client.health()
    except Exception:  # noqa: BLE001  the probe logs it
        return None, "unknown", None
    return health.group_id, health.state, health.fatal


def _health(client: HasHealth) -> Health:
    return client.health()


def _result(found: Iterable[tuple[str, str | None]]) -> ProbeAnswer:
    reasons = tuple(f"{group}: {reason}" for group, reason in found if reason is not None)
    return ProbeAnswer(not reasons, reasons)
