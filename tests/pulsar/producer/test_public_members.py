"""Public members of the classes about producers: what a user may call or read, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from asyncgroup.pulsar import PulsarProducer, PulsarProducerConfig, PulsarProducerRecord
from tests.public_members import public_members

MEMBERS = {
    PulsarProducer: "aclose config enqueue errors flush is_connected last_sequence_id name partitions pending_messages send"
    " send_nowait topic",
    PulsarProducerRecord: "deliver_after deliver_at event_time key ordering_key properties sequence_id topic value",
}


@pytest.mark.parametrize("kind", list(MEMBERS))
def test_public_members(kind: type) -> None:
    built_in = tuple if issubclass(kind, tuple) else object
    assert public_members(kind) - set(dir(built_in)) == set(MEMBERS[kind].split())


def test_public_members_of_the_configuration() -> None:
    settings = {field.name for field in dataclasses.fields(PulsarProducerConfig)}
    assert public_members(PulsarProducerConfig) - set(dir(object)) == settings | {
        "from_properties",
        "of",
        "pending_limit",
    }
