"""Methods of the consumers of aiokafka, kafka-python and confluent-kafka, each with what it is for a Consumer: hints of errors only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["CONSUMER", "ERRORS", "READER"]

_PARTITION: Final = "await consumer.partition(topic, partition, offset)"
_READ: Final = f"`async for record in` what {_PARTITION} returns; or a ConsumerGroup"
_BATCHES: Final = (
    f"`async for batch in reader.batches(max_records=…, max_wait=…)`, in seconds; reader = {_PARTITION}"
)
_ENTER: Final = "async with Consumer(…) as consumer"
_CLOSE: Final = "await consumer.aclose(), or the end of `async with`"
_GROUP: Final = "a Consumer is in no group: async with ConsumerGroup(servers, group_id) as group"
_COMMIT: Final = "a Consumer commits nothing: use a ConsumerGroup, or an OffsetManager"
_SEEK: Final = "seek(offset) of what consumer.partition(…) returned"
_MARKS: Final = "consumer.high_watermarks()"

CONSUMER: Final[Mapping[str, str]] = {
    "__aiter__": _READ,
    "start": _ENTER,
    "stop": _CLOSE,
    "close": _CLOSE,
    "subscribe": _GROUP,
    "subscription": _GROUP,
    "unsubscribe": _GROUP,
    "memberid": _GROUP,
    "group_metadata": _GROUP,
    "consumer_group_metadata": _GROUP,
    "assign": _PARTITION,
    "incremental_assign": _PARTITION,
    "unassign": "aclose() of what consumer.partition(…) returned",
    "incremental_unassign": "aclose() of what consumer.partition(…) returned",
    "assignment": "what consumer.partition(…) returned",
    "getone": _READ,
    "getmany": _BATCHES,
    "poll": _READ,
    "consume": _BATCHES,
    "commit": _COMMIT,
    "commit_async": _COMMIT,
    "commit_sync": _COMMIT,
    "store_offsets": _COMMIT,
    "position": "position of what consumer.partition(…) returned",
    "highwater": _MARKS,
    "high_water_marks": _MARKS,
    "get_watermark_offsets": "await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)",
    "last_stable_offset": "await consumer.end_offsets(partitions) with isolation_level='read_committed'",
    "last_poll_timestamp": "on_fetch of a hook",
    "current_lag": f"{_MARKS}, less the position of what consumer.partition(…) returned",
    "seek": _SEEK,
    "seek_to_beginning": f"{_SEEK}, with 'earliest'",
    "seek_to_end": f"{_SEEK}, with 'latest'",
    "seek_to_committed": f"{_SEEK}, with an offset of await consumer.committed(group_id)",
    "paused": "paused of what consumer.partition(…) returned",
    "partitions_for": "await consumer.partitions(topic)",
    "partitions_for_topic": "await consumer.partitions(topic)",
    "list_topics": "await consumer.topics(), await consumer.partitions(topic)",
    "bootstrap_connected": "entering raises if no broker answers",
    "cluster_id": "consumer.cluster.view.cluster_id",
    "metrics": "hooks=[…], see the guide on monitoring",
    "wakeup": _CLOSE,
    "set_sasl_credentials": "OAuthBearer(token_provider), or another Consumer",
}
"""As Python spells them."""

_NEXT: Final = "async for record in reader"
_READER_BATCHES: Final = "`async for batch in reader.batches(max_records=…, max_wait=…)`, in seconds"

READER: Final[Mapping[str, str]] = {
    "getone": _NEXT,
    "poll": _NEXT,
    "messages": _NEXT,
    "getmany": _READER_BATCHES,
    "consume": _READER_BATCHES,
    "close": "await reader.aclose()",
    "stop": "await reader.aclose()",
    "mark": _COMMIT,
    "commit": _COMMIT,
    "commit_async": _COMMIT,
    "commit_sync": _COMMIT,
    "store_offsets": _COMMIT,
    "committed": "await consumer.committed(group_id, partitions)",
    "highwater": "reader.high_watermark",
    "highWatermark": "reader.high_watermark",
    "high_water_mark": "reader.high_watermark",
    "seek_to_beginning": "reader.seek('earliest')",
    "seek_to_end": "reader.seek('latest')",
    "topic_partition": "reader.tp",
}
"""The same, for a PartitionConsumer, here `reader`."""

ERRORS: Final[Mapping[str, str]] = {"close": "await errors.aclose()", "stop": "await errors.aclose()"}
"""The same, for an ErrorReader, here `errors`; `close` is its former name."""
