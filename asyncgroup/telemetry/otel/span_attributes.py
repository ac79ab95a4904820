"""The attributes of spans about records, and what the deliveries of a record have in common: of Kafka and of Pulsar.

A message of Pulsar is recognized by its `message_id`, so that a program without Pulsar does not import it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from asyncgroup.interceptor import ProducerRecord
from asyncgroup.telemetry.otel.semantic_names import CURRENT
from asyncgroup.workqueue.copies import ORIGIN_MESSAGE_ID, REAL_TOPIC, origin

if TYPE_CHECKING:
    from asyncgroup.model import Batch, Record
    from asyncgroup.pulsar import PulsarProducerRecord
    from asyncgroup.workqueue.delivery import Delivery

__all__ = [
    "Attributes",
    "batch_attributes",
    "record_attributes",
    "record_key",
    "result_attributes",
    "send_attributes",
]

Attributes: TypeAlias = dict[str, str | int | bool]


def _operation(system: str, name: str) -> Mapping[str, str | int | bool]:
    return {CURRENT.system: system, CURRENT.operation_name: name, CURRENT.operation_type: name}


_SEND: Final = {system: _operation(system, "send") for system in ("kafka", "pulsar")}
_PROCESS: Final = {system: _operation(system, "process") for system in ("kafka", "pulsar")}


def send_attributes(record: ProducerRecord | PulsarProducerRecord) -> Attributes:
    """Return the attributes of a send when it begins."""
    is_kafka = isinstance(record, ProducerRecord)
    attributes: Attributes = {
        **_SEND["kafka" if is_kafka else "pulsar"],
        CURRENT.destination: record.topic,
    }
    if is_kafka and record.value is None:
        attributes[CURRENT.tombstone] = True
    return attributes


def result_attributes(metadata: Any) -> Attributes:
    """Return those that a send has from its RecordMetadata or MessageId."""
    attributes: Attributes = {}
    if metadata.partition >= 0:  # else a topic of Pulsar without partitions
        attributes[CURRENT.partition] = str(metadata.partition)
    if hasattr(metadata, "ledger_id"):
        attributes[CURRENT.message_id] = str(metadata)
    elif metadata.offset >= 0:  # -1 with acks=0
        attributes[CURRENT.offset] = metadata.offset
    return attributes


def record_attributes(record: Record, group_id: str) -> Attributes:
    """Return the attributes of the processing of a record."""
    message: Any = record
    if hasattr(type(record), "message_id"):
        attributes = {
            **_PROCESS["pulsar"],
            CURRENT.destination: record.topic,
            CURRENT.message_id: str(message.message_id),
        }
        if record.partition >= 0:
            attributes[CURRENT.partition] = str(record.partition)
        if group_id:
            attributes[CURRENT.subscription] = group_id
        return attributes
    attributes = {
        **_PROCESS["kafka"],
        CURRENT.destination: record.topic,
        CURRENT.partition: str(record.partition),
        CURRENT.offset: record.offset,
    }
    if group_id:
        attributes[CURRENT.group] = group_id
    if record.value is None:
        attributes[CURRENT.tombstone] = True
    return attributes


def batch_attributes(batch: Batch, group_id: str) -> Attributes:
    """Return the attributes of the processing of a batch."""
    attributes: Attributes = {
        **_PROCESS["kafka"],
        CURRENT.destination: batch.topic,
        CURRENT.partition: str(batch.partition),
        CURRENT.batch_count: len(batch),
    }
    if group_id:
        attributes[CURRENT.group] = group_id
    return attributes


def record_key(delivery: Delivery) -> tuple[object, ...]:
    """Return what the deliveries of a record have in common, those of its copies in the retry topic included."""
    record: Any = delivery.record
    if hasattr(type(record), "message_id"):  # its offset is another one after a reconnect
        properties = record.properties
        where = properties.get(ORIGIN_MESSAGE_ID) or str(record.message_id)
        return delivery.group_id, properties.get(REAL_TOPIC, record.topic), where
    first = origin(record) or (record.topic, record.partition, record.offset)
    return delivery.group_id, *first
