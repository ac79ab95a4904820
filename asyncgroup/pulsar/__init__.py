"""A native asyncio client for Apache Pulsar; it knows nothing of Kafka.

- `client`: PulsarClient, with its `core`, `config`, `service_url` and `authentication`; `errors`: the codes of a broker.
- `connection/`: connections and lookups. `reconnector`: keeps a producer or consumer at its broker.
- `producer/`: batches, pending messages, receipts.
- `consumer/`: consumers of a partition and of a topic.
- `wire/`: the bytes.
"""
