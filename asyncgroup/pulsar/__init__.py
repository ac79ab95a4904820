"""A native asyncio client for Apache Pulsar; it knows nothing of Kafka."""
