"""Methods of the consumers of aiokafka, kafka-python and confluent-kafka, each with what it is in a group: hints of errors only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["CLAIM", "GROUP", "SESSION"]

_RECORDS: Final = "async for record in group.records(topics)"
_BATCHES: Final = "`async for batch in claim.batches(max_records=…, max_wait=…)` in a handler, in seconds"
_CLOSE: Final = "await group.aclose(), or the end of `async with`"
_TOPICS: Final = "an argument of group.records, group.run and group.set_topics"
_ASSIGNED: Final = "brokers assign the partitions of a group; await consumer.partition(topic, partition) of a Consumer reads one"
_MARK: Final = (
    "group.mark(record), or claim.mark(record) in a handler; auto_commit, or await group.commit(), commits it"
)
_CLAIMS: Final = "of a claim in group.session.claims"
_LOOKUP: Final = "await consumer.{name}(…) of a Consumer"
_COMMITTED: Final = (
    "await consumer.committed(group_id, partitions) of a Consumer; a claim began at claim.initial_offset"
)
_METADATA: Final = "session.group_offsets(record), an argument of producer.send_offsets"
_SEEK: Final = "claim.seek(offset) {}"
_BEGINNING: Final = "claim.seek('earliest') {}"
_END: Final = "claim.seek('latest') {}"
_LAST: Final = "claim.seek(claim.next_mark) {}"

GROUP: Final[Mapping[str, str]] = {
    "__aiter__": _RECORDS,
    "start": "async with ConsumerGroup(…) as group",
    "stop": _CLOSE,
    "close": _CLOSE,
    "wakeup": _CLOSE,
    "unsubscribe": _CLOSE,
    "subscribe": _TOPICS,
    "subscription": _TOPICS,
    "assign": _ASSIGNED,
    "unassign": _ASSIGNED,
    "incremental_assign": _ASSIGNED,
    "incremental_unassign": _ASSIGNED,
    "assignment": "group.session.assignment, group.session.partitions",
    "getone": _RECORDS,
    "getmany": _BATCHES,
    "poll": _RECORDS,
    "commit_async": _MARK,
    "commit_sync": "await group.commit()",
    "store_offsets": _MARK,
    "committed": _COMMITTED,
    "position": f"claim.position {_CLAIMS}",
    "highwater": f"claim.high_watermark {_CLAIMS}",
    "get_watermark_offsets": f"claim.high_watermark {_CLAIMS}; {_LOOKUP.format(name='beginning_offsets')}",
    "last_stable_offset": "await consumer.end_offsets(partitions) of a Consumer with isolation_level='read_committed'",
    "last_poll_timestamp": "group.health().last_fetch, in seconds",
    "current_lag": f"claim.lag {_CLAIMS}",
    "lag": f"claim.lag {_CLAIMS}",
    "seek": _SEEK.format(_CLAIMS),
    "seek_to_beginning": _BEGINNING.format(_CLAIMS),
    "seek_to_end": _END.format(_CLAIMS),
    "seek_to_committed": _LAST.format(_CLAIMS),
    "paused": f"claim.paused {_CLAIMS}; group.health().paused",
    "beginning_offsets": _LOOKUP.format(name="beginning_offsets"),
    "end_offsets": _LOOKUP.format(name="end_offsets"),
    "offsets_for_times": _LOOKUP.format(name="offsets_for_times"),
    "topics": "await consumer.topics() of a Consumer",
    "partitions_for": "await consumer.partitions(topic) of a Consumer",
    "partitions_for_topic": "await consumer.partitions(topic) of a Consumer",
    "list_topics": "await consumer.topics(), await consumer.partitions(topic) of a Consumer",
    "enforce_rebalance": "none: a member joins again when it has to",
    "memberid": "group.session.member_id",
    "group_metadata": _METADATA,
    "consumer_group_metadata": _METADATA,
    "bootstrap_connected": "group.health()",
    "cluster_id": "group.cluster.view.cluster_id",
    "metrics": "hooks=[…], see the guide on monitoring",
    "set_sasl_credentials": "OAuthBearer(token_provider), or another ConsumerGroup",
}
"""Of a consumer, for a ConsumerGroup, as Python spells them. `commit`, `consume`, `pause` and `resume` are its own."""

_OF_SESSION: Final = "of a claim in session.claims"
_READ: Final = "async for record in claim"

SESSION: Final[Mapping[str, str]] = {
    "__aiter__": f"{_READ}, {_OF_SESSION}",
    "getone": f"{_READ}, {_OF_SESSION}",
    "getmany": _BATCHES,
    "poll": f"{_READ}, {_OF_SESSION}",
    "consume": _BATCHES,
    "close": "await group.aclose(), or the end of the handler",
    "stop": "await group.aclose(), or the end of the handler",
    "mark": "claim.mark(record), or session.mark_record(record)",
    "commit_async": "session.mark_record(record); auto_commit, or await session.commit(), commits it",
    "commit_sync": "await session.commit()",
    "store_offsets": "session.mark_offset(topic, partition, offset)",
    "committed": _COMMITTED,
    "position": f"claim.position {_OF_SESSION}",
    "highwater": f"claim.high_watermark {_OF_SESSION}",
    "lag": f"claim.lag {_OF_SESSION}",
    "seek": _SEEK.format(_OF_SESSION),
    "seek_to_beginning": _BEGINNING.format(_OF_SESSION),
    "seek_to_end": _END.format(_OF_SESSION),
    "seek_to_committed": _LAST.format(_OF_SESSION),
    "pause": f"claim.pause() {_OF_SESSION}, or group.pause(partitions)",
    "resume": f"claim.resume() {_OF_SESSION}, or group.resume(partitions)",
    "paused": f"claim.paused {_OF_SESSION}",
    "subscription": _TOPICS,
    "topics": "session.assignment, by topic",
    "memberid": "session.member_id",
    "generation": "session.generation_id",
    "group_metadata": _METADATA,
    "consumer_group_metadata": _METADATA,
}
"""The same, for a Session. `assignment` and `commit` are its own."""

CLAIM: Final[Mapping[str, str]] = {
    "getone": _READ,
    "getmany": "`async for batch in claim.batches(max_records=…, max_wait=…)`, in seconds",
    "poll": _READ,
    "consume": "`async for batch in claim.batches(max_records=…, max_wait=…)`, in seconds",
    "messages": _READ,
    "records": _READ,
    "close": "the end of consume_claim",
    "commit": "claim.mark(record); auto_commit, or await session.commit(), commits it",
    "commit_async": "claim.mark(record); auto_commit, or await session.commit(), commits it",
    "commit_sync": "claim.mark(record), then await session.commit()",
    "store_offsets": "claim.mark(record)",
    "committed": "claim.initial_offset, where it began; claim.next_mark, what is committed next",
    "offset": "claim.position",
    "highwater": "claim.high_watermark",
    "highWatermark": "claim.high_watermark",
    "high_water_mark": "claim.high_watermark",
    "get_watermark_offsets": f"claim.high_watermark; {_LOOKUP.format(name='beginning_offsets')}",
    "current_lag": "claim.lag",
    "seek_to_beginning": "claim.seek('earliest')",
    "seek_to_end": "claim.seek('latest')",
    "seek_to_committed": "claim.seek(claim.next_mark)",
    "topic_partition": "claim.tp",
}
"""The same, for a Claim. `partition`, `position`, `seek`, `pause`, `resume` and `paused` are its own."""
