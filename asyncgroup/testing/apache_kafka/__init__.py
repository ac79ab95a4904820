"""Start a real Apache Kafka for tests and benchmarks, from parts that pip can install.

    with ApacheKafka() as kafka:
        Producer({"bootstrap.servers": kafka.bootstrap_servers})

It needs Java 17 or later (`asyncgroup.java`) and, for the first start, network access (`jars`). Each node is a
KRaft broker and controller in one process. Nodes listen on 127.0.0.1 only and keep their data in a temporary
directory. POSIX only.

- `launcher` is the object that users have, `cluster` one run of it, `node` a process with its `properties`.
- `probe` asks whether a node is ready, `jars` downloads Kafka once. Processes and downloads are those of `java_server`.
"""

from asyncgroup.testing.apache_kafka.jars import KAFKA_VERSION, KafkaJarsUnavailable, kafka_jars
from asyncgroup.testing.apache_kafka.launcher import ApacheKafka, KafkaToolError
from asyncgroup.testing.apache_kafka.node import KafkaStartError
from asyncgroup.testing.java_server.options import QUICK_START

__all__ = [
    "KAFKA_VERSION",
    "QUICK_START",
    "ApacheKafka",
    "KafkaJarsUnavailable",
    "KafkaStartError",
    "KafkaToolError",
    "kafka_jars",
]
