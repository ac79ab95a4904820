"""The helper that reads the published fields reads them right: facts of `PulsarApi.proto` that do not change."""

from __future__ import annotations

import pytest

from tests.pulsar.contract.published import published_defaults, published_enums, published_fields

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("pulsar_at_hand")]


def test_numbers_kinds_and_labels() -> None:
    fields = published_fields()
    assert len(fields) > 70
    assert fields["MessageIdData"] == {
        "ledger_id": (1, "int64", "required"),
        "entry_id": (2, "int64", "required"),
        "partition": (3, "int32", "optional"),
        "batch_index": (4, "int32", "optional"),
        "ack_set": (5, "int64", "repeated"),
        "batch_size": (6, "int32", "optional"),
        "first_chunk_message_id": (7, "MessageIdData", "optional"),
    }
    assert fields["CommandSubscribe"]["sub_type"] == (3, "CommandSubscribe.SubType", "required")
    metadata = fields["MessageMetadata"]
    assert metadata["replicate_to"] == (7, "string", "repeated")
    assert metadata["encryption_param"] == (15, "bytes", "optional")
    assert metadata["null_value"] == (25, "bool", "optional")
    assert metadata["properties"] == (4, "KeyValue", "repeated")
    assert fields["CommandConsumerStatsResponse"]["msg_rate_out"].kind == "double"
    assert fields["CommandPing"] == {}


def test_each_command_has_the_number_of_its_type() -> None:
    types = published_enums()["BaseCommand.Type"]
    fields = published_fields()["BaseCommand"]
    assert fields.pop("type") == (1, "BaseCommand.Type", "required")
    assert {field.number for field in fields.values()} == set(types.values())


def test_kinds_are_scalars_messages_or_enums() -> None:
    scalars = {"bool", "bytes", "double", "int32", "int64", "string"}
    messages, enums = published_fields(), published_enums()
    kinds = {field.kind for fields in messages.values() for field in fields.values()}
    assert kinds - scalars <= messages.keys() | enums.keys()
    assert kinds >= scalars


def test_defaults() -> None:
    defaults = published_defaults()
    assert defaults["MessageIdData"] == {"partition": -1, "batch_index": -1, "batch_size": 0}
    assert defaults["CommandSubscribe"]["durable"] is True
    assert defaults["CommandSubscribe"]["initial_position"] == "Latest"
    assert defaults["MessageMetadata"]["num_messages_in_batch"] == 1


def test_enums() -> None:
    enums = published_enums()
    assert enums["CommandSubscribe.SubType"] == {"Exclusive": 0, "Shared": 1, "Failover": 2, "Key_Shared": 3}
    assert enums["CompressionType"] == {"NONE": 0, "LZ4": 1, "ZLIB": 2, "ZSTD": 3, "SNAPPY": 4}
