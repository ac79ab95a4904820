"""Work queues: Pulsar's delivery semantics on the partitions of a consumer group."""
