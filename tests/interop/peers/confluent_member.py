"""librdkafka as a member of a group, until the standard input ends.

Prints `assigned P P …`, all its partitions, whenever they change, and `record P OFFSET` for each record. Arguments:
bootstrap servers, topic, group, and `consumer` for the consumer protocol; without it the group is cooperative.
"""

import sys
import threading

from confluent_kafka import Consumer

CLASSIC = {
    "heartbeat.interval.ms": 200,
    "session.timeout.ms": 6000,
    "partition.assignment.strategy": "cooperative-sticky",
}


def main(bootstrap_servers: str, topic: str, group: str, protocol: str = "classic") -> None:
    """Consume until the standard input ends, then commit and leave."""
    ends = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ends.set()

    threading.Thread(target=wait, daemon=True).start()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "client.id": "librdkafka",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "group.protocol": protocol,
            **(CLASSIC if protocol == "classic" else {}),
        }
    )
    consumer.subscribe([topic])
    assigned: list[int] = []
    while not ends.is_set():
        for record in consumer.consume(100, 0.1):
            if record.error() is None:
                print("record", record.partition(), record.offset())
        now = sorted(tp.partition for tp in consumer.assignment())
        if now != assigned:
            print("assigned", *now)
            assigned = now
        sys.stdout.flush()
    consumer.close()


main(*sys.argv[1:])
