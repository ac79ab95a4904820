"""A native asyncio client for Apache Pulsar; it knows nothing of Kafka. `wire` has its bytes."""
