"""The context manager of a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Protocol, Self

from asyncgroup.checks import (
    TEXT,
    check_group_id,
    check_leader_epoch,
    check_metadata,
    check_offset,
    check_partition,
    check_topic,
)
from asyncgroup.errors import ConfigError
from asyncgroup.model import CommittedOffset, GroupOffsets, TopicPartition
from asyncgroup.producer.transaction_client import TransactionClient
from asyncgroup.producer.transactions.state import TransactionPhase

__all__ = ["HasGroupOffsets", "Transaction", "group_offsets"]

_OFFSETS_RULE: Final = (
    "the next offset of each partition: {(topic, partition): next_offset}, or a CommittedOffset with metadata"
)


class HasGroupOffsets(Protocol):
    """An object that returns the offsets of a group with the member that commits them, such as a session."""

    def group_offsets(self) -> GroupOffsets:
        """Return the next offsets to read, and the member's id and generation."""


def group_offsets(source: Any) -> GroupOffsets:
    """Return the offsets in the argument of `Producer.send_offsets`. Raises ConfigError if it has none."""
    found = source.group_offsets() if hasattr(source, "group_offsets") else source
    if not isinstance(found, GroupOffsets):
        raise ConfigError(
            "source",
            source,
            "a GroupOffsets, as session.group_offsets(batch) returns it, or an object with a group_offsets() method",
        )
    # here, as a coordinator would refuse the request, and the producer could only be closed
    _check_member(found)
    if not isinstance(found.offsets, Mapping):
        raise ConfigError("offsets", found.offsets, _OFFSETS_RULE)
    for tp, committed in found.offsets.items():
        if not isinstance(tp, TopicPartition) or not isinstance(committed, CommittedOffset):
            raise ConfigError("offsets", {tp: committed}, _OFFSETS_RULE)
        check_topic(check_partition(tp).topic)
        check_offset(committed.offset)
        check_metadata(committed.metadata)
        check_leader_epoch(committed.leader_epoch)
    return found


def _check_member(group: GroupOffsets) -> None:
    """Raise ConfigError unless the fields of the group and of its member have values that a request can contain."""
    check_group_id(group.group_id)
    if not TEXT[0](group.member_id):
        raise ConfigError("member_id", group.member_id, TEXT[1])
    if type(group.generation_id) is not int or not -1 <= group.generation_id < 1 << 31:
        raise ConfigError(
            "generation_id", group.generation_id, "-1 for none, or a whole number of at most 32 bits"
        )
    if group.group_instance_id is not None and not TEXT[0](group.group_instance_id):
        raise ConfigError("group_instance_id", group.group_instance_id, f"None, or {TEXT[1]}")


class Transaction:
    """A transaction of a producer: the block commits it at its end, and aborts it if it raises or is cancelled.

        async with producer.transaction():
            await producer.send("orders", b"one dozen")

    Returned by `Producer.transaction`, once for each transaction.
    """

    def __init__(self, client: TransactionClient) -> None:
        self._client = client
        self._state = "not begun"

    def __repr__(self) -> str:
        return f"<Transaction of {self._client.transactional_id!r}: {self._state}>"

    async def __aenter__(self) -> Self:
        await self._client.begin()
        self._state = "open"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state = "ended"
        if self._client.manager.state is TransactionPhase.DETACHED:
            self._state = "detached"
        elif kind is None:
            await self._client.commit()
            self._state = "committed"
        else:
            await self._client.abort(error)
            self._state = "aborted"
