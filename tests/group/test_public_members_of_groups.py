"""Public members: what the objects of group/ and offsets/ show is what a user may call, and nothing else.

A new member is added here on purpose, or its name begins with an underscore. A public class without a list fails.
"""

from __future__ import annotations

import inspect

import pytest

import asyncgroup
from asyncgroup import group, offsets
from tests.public_members import attributes_of, public_members

ASSIGNOR = {"name", "assign"}

PUBLIC_MEMBERS: dict[str, set[str]] = {
    # what a handler receives
    "Session": {
        *("group_id", "member_id", "generation_id", "assignment", "assignment_user_data", "partitions"),
        *("claims", "mark_record", "mark_offset", "reset_offset", "commit", "group_offsets"),
        *("ended", "cause", "is_lost", "wait_ended", "wait_lost"),
    },
    "Claim": {
        *("pause", "resume"),
        *("topic", "partition", "tp", "initial_offset", "initial_metadata", "position", "next_mark"),
        *("high_watermark", "lag", "stalled", "paused", "batches", "mark", "renew", "seek"),
        *("ended", "cause", "wait_ended"),
    },
    "ThreadClaim": {"topic", "partition", "tp", "batches", "mark", "renew", "ended", "cause"},
    "TransactionOutput": {"enqueue", "enqueue_all", "send", "send_nowait"},
    # what a user writes or creates
    "ConsumeTransformProduce": {"setup", "on_assigned", "consume_claim", "on_revoked", "on_lost", "cleanup"},
    "ConsumerGroup": {
        *("group_id", "config", "cluster", "consume", "run", "records", "set_topics", "aclose"),
        *("session", "health", "errors", "mark", "commit", "pause", "resume", "pause_all", "resume_all"),
    },
    "ExclusiveProducer": {"topic"},
    "Handler": {"setup", "on_assigned", "consume_claim", "on_revoked", "on_lost", "cleanup"},
    "Records": {"closed", "aclose"},
    "OffsetManager": {
        *("group_id", "config", "cluster", "manage", "manage_all", "of", "release"),
        *("fetch", "commit", "aclose"),
    },
    "PartitionOffsets": {
        "next_offset",
        "metadata",
        "leader_epoch",
        "value",
        "mark_offset",
        "mark_record",
        "reset_offset",
    },
    "CommittedOffset": {"offset", "metadata", "leader_epoch"},
    "SubscriptionPattern": {"pattern"},
    # health
    "Health": {
        *(
            "group_id",
            "member_id",
            "generation_id",
            "group_protocol",
            "state",
            "state_age",
            "waits_for",
            "problems",
        ),
        *("is_healthy", "claims", "lag", "paused", "stalled", "errors", "as_dict"),
        *("last_heartbeat", "last_fetch", "live", "ready", "fatal", "not_ready"),
    },
    "MemberProblem": {"kind", "names", "seconds", "text"} | public_members(str),
    "ProblemKind": {
        *("HANDLER", "HOOK", "LOST", "JOIN", "COMMIT", "HEARTBEAT", "HEARTBEAT_UNANSWERED", "START", "FETCH"),
        *("FETCH_UNANSWERED", "TOPIC_MISSING", "TOPIC_UNUSABLE", "STATE", "CALL_NOT_CANCELLED", "CALL_SLOW"),
        *("CLOSED", "NOT_CONSUMING", "LEAVING", "NOT_JOINED", "SILENT_BROKERS"),
        *("NO_BROKER", "REFUSED", "NOT_CONNECTED", "LOSES_BROKER", "ACKS", "UNACKED"),
    },
    "ClaimHealth": {
        *("topic", "partition", "tp", "position", "next_mark", "high_watermark", "lag", "paused", "stalled"),
    },
    "ErrorSeen": {"text", "count", "age"},
    # assignors; the last three of the sticky one are optional methods of the protocol
    "Assignor": ASSIGNOR,
    "RangeAssignor": {*ASSIGNOR, "assign_by_rack"},
    "RoundRobinAssignor": ASSIGNOR,
    "StickyAssignor": {*ASSIGNOR, "assign_by_rack", "for_group", "subscription_user_data", "on_assignment"},
    "Assignment": {"partitions", "user_data"},
    "MemberSubscription": {
        *(
            "member_id",
            "group_instance_id",
            "topics",
            "owned",
            "user_data",
            "generation_id",
            "rack_id",
            "order",
        ),
    },
}

INTERNAL = {"Committer", "MemberIdentity", "PartitionMarks"}
"""Classes that offsets/ exports for other rooms only: no user receives one."""

VIEWS = ("Session", "Claim", "PartitionOffsets")
"""Thin objects over private state."""


def exported() -> dict[str, type]:
    """Return the classes that group/ and offsets/ export, by name."""
    names = {name: getattr(room, name) for room in (group, offsets) for name in room.__all__}
    return {name: kind for name, kind in names.items() if inspect.isclass(kind)}


@pytest.mark.parametrize("name", sorted(exported()))
def test_public_members(name: str) -> None:
    if name in INTERNAL:
        assert name not in asyncgroup.__all__
    else:
        assert public_members(exported()[name]) == PUBLIC_MEMBERS[name]


def test_every_list_is_of_an_exported_class() -> None:
    assert {*PUBLIC_MEMBERS, *INTERNAL} == {*exported()}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_has_no_other_attributes(name: str) -> None:
    kind = exported()[name]
    assert "__dict__" not in dir(kind)
    assert attributes_of(kind) == {slot for slot in kind.__slots__ if slot != "__weakref__"}
    assert all(attribute.startswith("_") for attribute in attributes_of(kind))


@pytest.mark.parametrize("name", sorted(PUBLIC_MEMBERS["TransactionOutput"]))
def test_an_output_is_called_as_a_producer(name: str) -> None:
    mine, producers = (getattr(kind, name) for kind in (asyncgroup.TransactionOutput, asyncgroup.Producer))
    assert inspect.signature(mine) == inspect.signature(producers)
