"""Liveness: what the probes of a member ask: whether only a restart helps, and whether it takes part in its group.

A restart of all members makes an outage longer. So brokers that do not answer, rebalances and lag are never a reason for one.
"""

from __future__ import annotations

from asyncgroup.errors import ClaimStuck
from asyncgroup.lifecycle import describe_error

__all__ = ["Liveness"]


class Liveness:
    """What is known for the probes of a member, written where it occurs."""

    def __init__(self) -> None:
        self.stuck: ClaimStuck | None = None
        """The claim that was stuck for `max_poll_interval`, until its handler has ended."""
        self.failure: str | None = None
        """The error that `run()` or `consume()` has raised, until the next call."""
        self.has_joined = False
        """Whether the member has consumed since it last entered its group; a rebalance does not change that."""

    def __repr__(self) -> str:
        return f"<Liveness: {'joined' if self.has_joined else 'not joined'}, fatal: {self.fatal}>"

    def note_failure(self, error: BaseException) -> None:
        """`run()` or `consume()` raises this error: nothing consumes until they are called again.

        Also GROUP_MAX_SIZE_REACHED, as for Java's `poll`: a restart joins once there is a place.
        """
        self.failure = f"run() has ended: {describe_error(error)}"

    @property
    def fatal(self) -> str | None:
        """Why only a restart helps, in words; None while the member goes on by itself."""
        return str(self.stuck) if self.stuck is not None else self.failure
