"""Names of Pulsar's clients and of Confluent's parallel-consumer, each with what it is here: hints of errors only.

Java's names and those of the Python client differ in their spelling, so names are compared in lower case without underscores.
The names are those of pulsar-client-api 4.2 (Java), pulsar-client 3.13 (Python) and parallel-consumer 0.5
(`ParallelConsumerOptions`, `PollContext`, `RecordContext`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from asyncgroup.named_arguments import NO_ARGUMENT

__all__ = ["ARGUMENTS", "DELIVERY", "QUEUE", "argument_hint"]

_TOPICS: Final = "the third argument: a name, a list of names, or a compiled pattern"
_SECONDS: Final = "nack_backoff=…, in seconds"
_DEAD_LETTER: Final = "dead_letter=DeadLetter(max_redeliveries=…, topic=…)"
_BATCH: Final = "queue.batch_receive(BatchPolicy(max_records=…, max_bytes=…, timeout=…)), in seconds"
_KEY_SHARED: Final = "allow_out_of_order=…; queue.consumer(name, key_ranges=…)"
_MODES: Final = "mode=Mode.SHARED, Mode.KEY_SHARED, Mode.FAILOVER or Mode.EXCLUSIVE"
_ALWAYS: Final = "always: each record is acknowledged by itself"
_NO_PROPERTIES: Final = "Kafka's groups have no properties"
_NO_ENCRYPTION: Final = "values are not encrypted end to end; decrypt in decode=…"
_CONFIG: Final = "a key of the group's configuration: config=ConsumerConfig({})"
_DECODE: Final = "decode=…, a function of a record; its result is delivery.decoded"

_SOURCE: Final = "on Pulsar of its source: WorkQueue(PulsarSource(url, group, topics, {}=…))"

ARGUMENTS: Final[Mapping[str, str]] = {
    "bootstrap": "the first argument",
    "servers": "the first argument",
    "serviceurl": "the first argument: Kafka's bootstrap servers",
    "subscription": "the second argument, the group",
    "subscriptionname": "the second argument, the group",
    "group": "the second argument, the group",
    "topic": _TOPICS,
    "topicspattern": _TOPICS,
    "ispatterntopic": _TOPICS,
    "pattern": _TOPICS,
    "subscriptiontype": _MODES,
    "consumertype": _MODES,
    "subscriptioninitialposition": "initial_position='earliest' or 'latest'",
    "startmessageidinclusive": "queue.seek(position, inclusive=…)",
    "messagelistener": "queue.run(handle)",
    "schema": _DECODE,
    "messagepayloadprocessor": _DECODE,
    "receiverqueuesize": "receiver_queue=…",
    "maxtotalreceiverqueuesizeacrosspartitions": "receiver_queue_total=…",
    "consumername": "name=…",
    "prioritylevel": "priority=…",
    "unackedmessagestimeoutms": "ack_timeout=…, in seconds",
    "acktimeoutmillis": "ack_timeout=…, in seconds",
    "negativeackredeliverydelay": _SECONDS,
    "negativeackredeliverydelayms": _SECONDS,
    "negativeackredeliverybackoff": "nack_backoff=Backoff(initial=…, factor=…, maximum=…), in seconds",
    "acknowledgmentgrouptime": "ack_group_time=…, in seconds",
    "maxacknowledgmentgroupsize": "ack_group_size=…",
    "isackreceiptenabled": "delivery.ack(durable=True)",
    "enablebatchindexacknowledgment": _ALWAYS,
    "batchindexackenabled": _ALWAYS,
    "enableretry": "retry=RetryTopic()",
    "retrylettertopic": "RetryTopic(topic=…)",
    "deadletterpolicy": _DEAD_LETTER,
    "deadlettertopic": "DeadLetter(topic=…)",
    "maxredelivercount": "DeadLetter(max_redeliveries=…)",
    "initialsubscriptionname": "Kafka keeps records without a group",
    "batchreceivepolicy": _BATCH,
    "maxnummessage": "BatchPolicy(max_records=…)",
    "maxnummessages": "BatchPolicy(max_records=…)",
    "maxnumbytes": "BatchPolicy(max_bytes=…)",
    "timeoutms": "BatchPolicy(timeout=…), in seconds",
    "mindelayms": "Backoff(initial=…), in seconds",
    "maxdelayms": "Backoff(maximum=…), in seconds",
    "multiplier": "Backoff(factor=…)",
    "keysharedpolicy": _KEY_SHARED,
    "keysharedmode": _KEY_SHARED,
    "allowoutoforderdelivery": "allow_out_of_order=…",
    "stickyranges": "queue.consumer(name, key_ranges=…)",
    "intercept": "interceptors=…",
    "consumereventlistener": "became_active and became_inactive of a QueueInterceptor: interceptors=…",
    "startpaused": "call queue.run later, or queue.pause()",
    "properties": _NO_PROPERTIES,
    "subscriptionproperties": _NO_PROPERTIES,
    "brokerconsumerstatscachetimems": "queue.statistics() sends no request",
    "patternautodiscoveryperiod": _CONFIG.format("metadata_refresh_interval=…"),
    "maxpendingchunkedmessage": _CONFIG.format("max_pending_chunked=…"),
    "autoackoldestchunkedmessageonqueuefull": _CONFIG.format("auto_ack_oldest=…"),
    "isreadcompacted": "a compacted topic is always read as it is",
    "readcompacted": "a compacted topic is always read as it is",
    "regexsubscriptionmode": "all topics are persistent",
    "replicatesubscriptionstate": "MirrorMaker 2 translates committed offsets",
    "replicatesubscriptionstateenabled": "MirrorMaker 2 translates committed offsets",
    "cryptokeyreader": _NO_ENCRYPTION,
    "cryptofailureaction": _NO_ENCRYPTION,
    # parallel-consumer
    "maxconcurrency": "concurrency=…",
    "ordering": "mode=Mode.KEY_SHARED for KEY, Mode.SHARED for UNORDERED, Mode.FAILOVER for PARTITION",
    "commitmode": "acknowledgements are committed in groups: ack_group_time=…; delivery.ack(durable=True) waits for the commit",
    "commitinterval": "ack_group_time=…, in seconds",
    "offsetcommittimeout": _CONFIG.format("request_timeout=…"),
    "batchsize": _BATCH,
    "retrydelayprovider": "nack_backoff=Backoff(…), or delivery.nack(delay=…)",
    "defaultmessageretrydelay": _SECONDS,
    "messagebuffersize": "receiver_queue=…",
    "consumer": "config=ConsumerConfig(…)",
    "producer": "producer_config=ProducerConfig(…), for retry and dead letter topics",
    "invalidoffsetmetadatapolicy": "metadata of other programs is ignored with a warning",
    # arguments of a PulsarSource
    "keyranges": f"queue.consumer(name, key_ranges=…), {_SOURCE.format('key_ranges')}",
    "durable": _SOURCE.format("durable"),
    "indexacks": _SOURCE.format("index_acks"),
    "deadlettersubscription": _SOURCE.format("dead_letter_subscription"),
    "closetimeout": f"{_CONFIG.format('close_timeout=…')}, {_SOURCE.format('close_timeout')}",
}
"""Arguments of a WorkQueue and of its policies."""

_ACK: Final = "await delivery.ack()"
_NACK: Final = "await delivery.nack()"
_RECONSUME: Final = "await delivery.reconsume_later(delay)"
_CUMULATIVE: Final = "await delivery.ack_cumulative()"
_DURABLE: Final = "await delivery.ack(durable=True)"
_VALUE: Final = "delivery.value, bytes, or delivery.decoded with decode=…"
_TIME: Final = "delivery.record.timestamp in ms, or delivery.record.time"
_NOT_KEPT: Final = "Kafka does not keep it; send a header"

DELIVERY: Final[Mapping[str, str]] = {
    "acknowledge": _ACK,
    "acknowledge_async": _ACK,
    "acknowledge_cumulative": _CUMULATIVE,
    "acknowledge_cumulative_async": _CUMULATIVE,
    "negative_acknowledge": _NACK,
    "reconsumeLater": _RECONSUME,
    "commit": _DURABLE,
    "data": _VALUE,
    "get_data": _VALUE,
    "get_value": _VALUE,
    "has_null_value": "delivery.value is None",
    "size": "len(delivery.value)",
    "get_key": "delivery.key",
    "get_key_bytes": "delivery.key",
    "has_key": "delivery.key is not None",
    "partition_key": "delivery.key",
    "get_ordering_key": "delivery.ordering_key",
    "properties": "delivery.headers, pairs of a name and bytes; on Pulsar delivery.record.properties",
    "get_properties": "delivery.headers, pairs of a name and bytes; on Pulsar delivery.record.properties",
    "get_property": "dict(delivery.headers)[name]",
    "message_id": "topic, partition and offset of delivery.record; on Pulsar delivery.record.message_id",
    "get_message_id": "topic, partition and offset of delivery.record; on Pulsar delivery.record.message_id",
    "topic": "delivery.record.topic",
    "topic_name": "delivery.record.topic",
    "get_topic_name": "delivery.record.topic",
    "partition": "delivery.record.partition",
    "offset": "delivery.record.offset",
    "timestamp": _TIME,
    "publish_timestamp": _TIME,
    "event_timestamp": _TIME,
    "get_publish_time": _TIME,
    "get_event_time": _TIME,
    "get_redelivery_count": "delivery.redelivery_count",
    "producer_name": _NOT_KEPT,
    "schema_version": "a function decode=… knows its schemas",
    "encryption_context": "values are not encrypted",
    # parallel-consumer
    "get_single_record": "the delivery itself",
    "get_single_consumer_record": "delivery.record",
    "get_consumer_record": "delivery.record",
    "get_number_of_failed_attempts": "delivery.redelivery_count",
}
"""Methods of Pulsar's messages, and of what parallel-consumer's functions get, as Python spells them."""

_RUN: Final = "await queue.run(handle), or `async for delivery in queue`"
_CLOSE: Final = "the end of `async with`, or await queue.aclose()"
_PRODUCE: Final = "await producer.send(…) of a Producer in the handler of queue.run, before it returns"
_END: Final = "await consumer.end_offsets(partitions) of a Consumer"

QUEUE: Final[Mapping[str, str]] = {
    "acknowledge": _ACK,
    "acknowledge_async": _ACK,
    "acknowledge_cumulative": _CUMULATIVE,
    "acknowledge_cumulative_async": _CUMULATIVE,
    "negative_acknowledge": _NACK,
    "reconsume_later": _RECONSUME,
    "reconsume_later_async": _RECONSUME,
    "redeliver_unacknowledged_messages": "await delivery.nack(delay=0) of each open delivery",
    "commit": _DURABLE,
    "close": _CLOSE,
    "close_async": _CLOSE,
    "unsubscribe": "close the queue, and delete the group with Kafka's tools",
    "subscribe": "async with WorkQueue(servers, group_id, topics) as queue",
    "receive_async": "await queue.receive()",
    "batchReceive": "await queue.batch_receive()",
    "get_stats": "queue.statistics()",
    "is_connected": "queue.health()",
    "get_last_message_id": _END,
    "pause_message_listener": "queue.pause()",
    "resume_message_listener": "queue.resume()",
    "subscription_name": "queue.group_id",
    "get_subscription": "queue.group_id",
    "topic": "the third argument of the queue; queue.retry_topic and queue.dead_letter_topic",
    "consumer_name": "the argument name=… of the queue",
    # parallel-consumer
    "poll": _RUN,
    "poll_and_produce": _PRODUCE,
    "poll_and_produce_many": _PRODUCE,
    "close_drain_first": _CLOSE,
    "close_dont_drain_first": _CLOSE,
    "pause_if_running": "queue.pause()",
    "resume_if_paused": "queue.resume()",
    "work_remaining": "queue.statistics()",
    "is_closed_or_failed": "queue.health()",
    "get_failure_cause": "await queue.run(handle) raises it",
}
"""Methods of Pulsar's consumer and of a ParallelStreamProcessor, as Python spells them."""


def argument_hint(name: str, known: Collection[str], config_keys: Collection[str]) -> str:
    """Return the text for an unknown argument of an object with the arguments `known`."""
    from asyncgroup.properties.suggestions import close_matches

    if (found := ARGUMENTS.get(_plain(name))) is not None:
        return f"{NO_ARGUMENT}; {found}"
    if name in config_keys:
        return f"{NO_ARGUMENT}; {_CONFIG.format(f'{name}=…')}"
    near = close_matches(name, known)
    return f"{NO_ARGUMENT}; did you mean {' or '.join(near)}?" if near else NO_ARGUMENT


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
