"""Start a real Apache Pulsar for tests and benchmarks, from parts that pip can install.

    with ApachePulsar() as pulsar:
        pulsar_client = pulsar_library.Client(pulsar.service_url)

    async with ApachePulsar(broker_entry_metadata=True) as pulsar:
        await pulsar.admin.create_partitioned_topic("orders", 4)

It needs Java 17 or later (`asyncgroup.java`) and, for the first start, network access (`pulsar_jars`). A standalone is
broker, bookie and metadata store in one process. It listens on 127.0.0.1 only and keeps its data in a temporary
directory. POSIX only.

- `launcher` is the object that users have, `standalone` one run of it, with its `properties` and `credentials`.
- `admin` asks the broker over HTTP, `jars` downloads Pulsar once. Processes and downloads are those of `java_server`.
"""

from asyncgroup.testing.apache_pulsar.admin import PulsarAdmin, PulsarAdminError
from asyncgroup.testing.apache_pulsar.credentials import create_token
from asyncgroup.testing.apache_pulsar.jars import PULSAR_VERSION, PulsarJarsUnavailable, pulsar_jars
from asyncgroup.testing.apache_pulsar.launcher import ApachePulsar
from asyncgroup.testing.apache_pulsar.standalone import PulsarStartError

__all__ = [
    "PULSAR_VERSION",
    "ApachePulsar",
    "PulsarAdmin",
    "PulsarAdminError",
    "PulsarJarsUnavailable",
    "PulsarStartError",
    "create_token",
    "pulsar_jars",
]
