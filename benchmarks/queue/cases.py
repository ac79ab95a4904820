"""What is measured (cases), and which clients are measured with it."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from benchmarks.queue.cassandra import CASSANDRA
from benchmarks.queue.installation import JavaLibrary, JavaProgram, PythonEnvironment

__all__ = [
    "CASES",
    "CLIENTS",
    "METADATA",
    "PARALLEL_CONSUMER",
    "PYRALLEL",
    "REFERENCES",
    "Case",
    "Client",
    "pinned_versions",
    "with_baselines",
]

METADATA: Final = "metadata"
"""The case without a broker."""


class Case(NamedTuple):
    """What is in a topic and what a handler does with it; `baseline` is the case that figures are compared to."""

    name: str
    title: str
    kind: Literal["work", "fresh", "block"]
    records: int
    """Healthy records; those of the kind `fresh` are produced during the measurement."""
    keys: int
    work: float = 0.0
    """Seconds that a handler sleeps, at least."""
    work_step: float = 0.0
    """Added 0 to 4 times, by the record's offset."""
    poison: float = 0.0
    """Poison records as a share of the healthy ones, or their number if it is 1 or more."""
    retry_factor: float = 2.0
    retry_max: float = 600.0
    size: int = 100
    """Bytes of a value."""
    baseline: str | None = None
    partitions: int | None = None
    """Partitions of its topic; None for those of the command line."""

    @property
    def mean_work(self) -> float:
        """The mean sleep of a handler, in seconds."""
        return self.work + 2 * self.work_step

    def bound(self, concurrency: int) -> float | None:
        """Return the records per second that `concurrency` handlers reach if they only sleep; None without work.

        At most one record of each key is handled at a time.
        """
        return min(self.keys, concurrency) / self.mean_work if self.mean_work else None

    def poison_records(self, records: int) -> int:
        """Return the number of poison records beside `records` healthy ones."""
        return int(self.poison if self.poison >= 1 else self.poison * records)


CASES: Final = {
    case.name: case
    for case in (
        Case("keys", "100 keys, 5 ms a record", "work", 20_000, 100, 0.005),
        Case("idle", "handlers without work", "work", 200_000, 1000),
        Case("wide", "handlers without work, 1,000 partitions", "work", 200_000, 1000, partitions=1000),
        Case("many-keys", "10,000 keys, 1 to 5 ms a record", "work", 20_000, 10_000, 0.001, 0.001),
        Case("poison", "5 % poison records", "work", 20_000, 100, 0.005, poison=0.05, baseline="keys"),
        # the one poison record shows that the client has begun
        Case(
            "fresh-alone", "start of a fresh record", "fresh", 500, 500,
            poison=1, retry_factor=1.0, retry_max=1.0,
        ),
        Case(
            "fresh", "start of a fresh record while 1,000 wait for retry", "fresh", 500, 500,
            poison=1000, retry_factor=1.0, retry_max=1.0, baseline="fresh-alone",
        ),
        Case("blocked-idle", "memory of a client without records", "block", 0, 1),
        Case(
            "blocked", "memory while all handlers block", "block", 40_000, 40_000, size=5000, baseline="blocked-idle",
        ),
    )
}  # fmt: skip
"""Cases on a broker by name, in the order in which they are measured: a baseline comes before the cases compared to it."""


def with_baselines(names: list[str]) -> list[str]:
    """Return these cases and those that they are compared to, in the order of `CASES`."""
    wanted = set(names) | {CASES[name].baseline for name in names}
    return [name for name in CASES if name in wanted]


WORKING: Final = ("keys", "idle", "wide", "many-keys")
BLOCKED: Final = ("blocked-idle", "blocked")
RETRYING: Final = (*WORKING, "poison", "fresh-alone", "fresh", *BLOCKED)


class Client(NamedTuple):
    """A client, or a way to use one: its distribution, and where it runs."""

    name: str
    distribution: str
    how: str
    """How it acknowledges, for the caption."""
    cases: tuple[str, ...]
    function: str = ""
    """For `benchmarks.worker`; empty for the program in Java."""
    environment: PythonEnvironment | None = None
    """None for the environment of this process."""
    needs_cassandra: bool = False


PYRALLEL: Final = PythonEnvironment("pyrallel-consumer", "1.0.0", minimum=(3, 12))
_PROSODY: Final = PythonEnvironment("prosody-events", "0.6.1")
_FASTSTREAM: Final = PythonEnvironment("faststream", "0.7.8", "[kafka]")
PARALLEL_CONSUMER: Final = JavaProgram(
    "parallel_consumer",
    JavaLibrary("io.confluent.parallelconsumer", "parallel-consumer-core", "0.5.3.3"),
)

CLAIM: Final = "asyncgroup.claim"
TASKS_ALONE: Final = "tasks-alone"
REFERENCES: Final = {"idle": CLAIM, "wide": CLAIM, "keys": TASKS_ALONE, "many-keys": TASKS_ALONE}
"""The client that ratios refer to, by case."""


def _own(name: str, function: str, how: str, cases: tuple[str, ...]) -> Client:
    return Client(name, "asyncgroup", how, cases, f"benchmarks.queue.asyncgroup_client:{function}")


CLIENTS: Final = {
    client.name: client
    for client in (
        _own("asyncgroup", "run", "queue.run(handle): the handler returns or raises", RETRYING),
        _own("asyncgroup.iterate", "iterate", "async for delivery in queue: await delivery.ack()", ("idle", "wide")),
        _own(CLAIM, "claim", "async for record in claim: claim.mark(record), in sequence", WORKING),
        Client(
            TASKS_ALONE, "asyncgroup", "tasks that only sleep, without Kafka: what asyncio can reach", ("keys", "many-keys"),
            "benchmarks.queue.tasks_alone:run",
        ),
        Client(
            "aiokafka", "aiokafka", "async for record in consumer, in sequence, automatic commits", (*WORKING, *BLOCKED),
            "benchmarks.queue.aiokafka_client:run",
        ),
        Client(
            "faststream", "faststream", "ack_policy=NACK_ON_ERROR, a worker for each partition: a commit after each record",
            RETRYING, "benchmarks.queue.faststream_client:run", _FASTSTREAM,
        ),
        Client(
            "faststream.ack-first", "faststream", "its default, ACK_FIRST: acknowledged before the handler, no order", WORKING,
            "benchmarks.queue.faststream_client:ack_first", _FASTSTREAM,
        ),
        Client(
            "pyrallel-consumer", "pyrallel-consumer", "the handler returns or raises; key order, asyncio engine", RETRYING,
            "benchmarks.queue.pyrallel_client:run", PYRALLEL,
        ),
        Client(
            "prosody-events", "prosody-events", "the handler returns or raises; key order, pipeline mode with Cassandra",
            RETRYING, "benchmarks.queue.prosody_client:run", _PROSODY, needs_cassandra=True,
        ),
        Client(
            "parallel-consumer", "parallel-consumer", "confluent's, in Java: the handler returns or throws; key order",
            RETRYING,
        ),
    )
}  # fmt: skip
"""Clients by name, in the order of the tables."""


def pinned_versions(names: list[str]) -> dict[str, str]:
    """Return the versions of the measured libraries that are not in this process's environment."""
    found: dict[str, str] = {}
    for name in names:
        client = CLIENTS[name]
        if client.environment is not None:
            found[client.distribution] = client.environment.version
        elif not client.function:
            found[client.distribution] = PARALLEL_CONSUMER.library.version
        if client.needs_cassandra:
            found["Cassandra"] = CASSANDRA.version
    return found
