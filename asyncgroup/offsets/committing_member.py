"""CommittingMember: under which generation a member commits, and what a refusal of a commit means for its membership."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Set as AbstractSet
from typing import TypeAlias

from asyncgroup.errors import AsyncGroupError, BrokerError
from asyncgroup.offsets.commit_requests import NEWER_GENERATION_CODES, CommitAction, commit_action
from asyncgroup.offsets.partition_offsets import MemberIdentity

__all__ = ["CommittingMember", "ConfirmRefusal", "broker_codes"]

ConfirmRefusal: TypeAlias = "Callable[[int | None, float], Awaitable[bool]]"
"""`confirm_refusal(lookup, sent_at)`: check whether an error that ends the membership counts, for a request sent at that loop
time to the coordinator found by that lookup."""


def broker_codes(errors: Iterable[AsyncGroupError]) -> set[int]:
    """Return the error codes of those errors that brokers sent."""
    return {error.code for error in errors if isinstance(error, BrokerError)}


class CommittingMember:
    """The membership that commits depend on; `Committer` describes the arguments.

    Without `on_lost` there is no membership to lose.
    """

    def __init__(
        self,
        identity: Callable[[], MemberIdentity],
        on_lost: Callable[[BrokerError], None] | None,
        confirm_refusal: ConfirmRefusal | None,
        wait_joined: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        self._identity = identity
        self._on_lost = on_lost
        self._confirm_refusal = confirm_refusal
        self._wait_joined = wait_joined
        self.lost: AsyncGroupError | None = None
        """Why the membership was lost, so that nothing more is committed; None while it is not."""

    def __repr__(self) -> str:
        return f"<CommittingMember {self.identity.member_id!r}{'' if self.lost is None else ', lost'}>"

    @property
    def identity(self) -> MemberIdentity:
        """The member with its present generation or epoch."""
        return self._identity()

    def is_outdated(self, sent_under: MemberIdentity, refusals: AbstractSet[int]) -> bool:
        """Return whether a request was refused with these codes under a former generation."""
        is_refused = any(
            code in NEWER_GENERATION_CODES or commit_action(code) is CommitAction.LOST for code in refusals
        )
        return is_refused and sent_under != self.identity

    async def has_joined_again(self, refusals: AbstractSet[int]) -> bool:
        """Return whether the member has a newer generation or epoch than that for which a request was refused."""
        if refusals.isdisjoint(NEWER_GENERATION_CODES) or self._wait_joined is None:
            return False
        return await self._wait_joined()

    async def confirm_loss(
        self, codes: Iterable[int], sent_under: MemberIdentity, lookup: int | None, sent_at: float
    ) -> bool:
        """Return whether one of the error codes ends the membership; `confirm_refusal` is awaited if one of them may.

        A refusal under a former generation does not end it: the commit may have been sent after the group got a new one,
        and before the member had its assignment.
        """
        refused = any(commit_action(code) is CommitAction.LOST for code in codes)
        if not refused or self._confirm_refusal is None or self.lost is not None:
            return refused
        if sent_under != self.identity:
            return False
        return await self._confirm_refusal(lookup, sent_at)

    def lose(self, error: BrokerError) -> None:
        """Apply a refusal that ends the membership, if there is one."""
        if self.lost is None and self._on_lost is not None:
            self.lost = error
            self._on_lost(error)

    def mark_lost(self, error: AsyncGroupError) -> None:
        """Commit nothing more, as the membership is lost."""
        self.lost = self.lost or error
