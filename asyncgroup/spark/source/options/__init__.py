"""The options of `format("asyncgroup")`: those of Spark's Kafka source, with its rules, and additional ones.

Options of Spark (`KafkaSourceProvider`; names are case-insensitive):

- `kafka.bootstrap.servers`, and exactly one of `subscribe` (topics with commas), `subscribePattern` (a regular
  expression), `assign` (JSON). `kafka.…`: see `kafka_options`.
- `startingOffsets`: earliest, latest, or JSON: `{"a":{"0":5,"1":-1},"b":"latest"}` (a word for a whole topic is newer than
  the connector 4.2.0: SPARK-58774). `startingTimestamp` takes precedence over `startingOffsetsByTimestamp`, and that over
  `startingOffsets`; `startingOffsetsByTimestampStrategy`: error, latest. They apply to new queries only. Default: latest
  in a stream, earliest in a batch query. `endingOffsets`, `endingTimestamp`, `endingOffsetsByTimestamp`: batch only.
- `failOnDataLoss` (true), `includeHeaders` (false), `minPartitions`, `maxRecordsPerPartition`, `maxOffsetsPerTrigger`,
  `minOffsetsPerTrigger`, `maxTriggerDelay` (15m), `kafkaConsumer.pollTimeoutMs` (120000), `fetchOffset.numRetries` (3),
  `fetchOffset.retryIntervalMs` (1000).
- `groupIdPrefix`, `partition.metadata.cache.ttl.ms`: accepted without effect, as no group is joined under a generated id,
  and partitions are looked up at bounded intervals anyway.

Additional options:

- `startingOffsets=group`: the committed offsets of the group `kafka.group.id`; `groupFallback` for partitions without one:
  earliest, latest or error. Default: as without startingOffsets, latest in a stream, earliest in a batch query.
- `commitOffsets` (auto, off): whether a stream with a `kafka.group.id` commits the offsets of finished batches. It does so
  when Spark next asks for the latest offsets: at once, or at the next trigger with `processingTime`. `commitFailure`
  (warn, fail); `commitInterval` (60s): how often it repeats the commit while idle, so that the offsets do not expire.
- `missingCommits` (check, ignore): how a restarted query treats partitions whose offsets are in the checkpoint but not in
  the group. Brokers delete a group's offsets with the topic, so check assumes that the topic was recreated: this is an
  error with failOnDataLoss=true; with false the topic is read from its start. ignore uses the checkpoint; needed for the
  first start with another kafka.group.id, or after the group's offsets have expired.
- `maxBytesPerTrigger` (such as 64m): approximate log bytes of a batch. `tasks`: the maximum number of Spark tasks for a
  batch; auto combines partitions that have fewer than 10,000 offsets in the batch, and gives larger ones a task each;
  default: a task for each partition, as in Spark's source. `fetchBytes` (4m, or kafka.max.partition.fetch.bytes): bytes
  that a task requests of a partition at a time.

`parser` makes `settings` from the options, which `values` reads by name: with `offset_options` (over `offsets_json`), `patterns`, and
`kafka_options` (over `kafka_properties`, which writing queries share).
"""
