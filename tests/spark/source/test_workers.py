"""State that a worker process keeps between tasks, and the end of tasks; on a real loop, with a broker in a thread."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from asyncgroup.spark.source.errors import DataLossError
from asyncgroup.spark.source.executor import workers
from asyncgroup.spark.source.executor.workers import read_ranges
from asyncgroup.spark.source.options.settings import ReadSettings
from asyncgroup.testing import KafkaServer
from tests.spark.source.reading import TOPIC, fill, part, settings

pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def _own_process() -> Iterator[None]:
    """Start and end each test without any worker state."""
    workers.close()
    yield
    workers.close()


@pytest.fixture
def broker(kafka_server: KafkaServer) -> KafkaServer:
    """A broker with 300 records in each of four partitions."""
    kafka_server.create_topic(TOPIC, 4)
    for number in range(4):
        kafka_server.call(lambda cluster, number=number: fill(cluster, 300, partition=number, size=300))
    return kafka_server


def offsets(asked: ReadSettings, *ranges: tuple[str, int, int, int]) -> list[int]:
    return [offset for made in read_ranges(asked, ranges) for offset in made.column("offset").to_pylist()]  # type: ignore[arg-type]


def handshakes(broker: KafkaServer) -> int:
    return len(broker.history.of("ApiVersions"))


def test_connections_and_metadata_are_kept(broker: KafkaServer) -> None:
    asked = settings(broker.bootstrap_servers)
    assert offsets(asked, part(0, 10), part(5, 20, 3)) == [*range(10), *range(5, 20)]
    before = handshakes(broker), len(broker.history.of("Metadata"))
    for start in range(50, 200, 50):
        again = pickle.loads(pickle.dumps(asked))
        assert offsets(again, part(start, start + 20, 1)) == list(range(start, start + 20))
    assert (handshakes(broker), len(broker.history.of("Metadata"))) == before


def clusters() -> list[Any]:
    """Return the clusters that this worker process keeps."""
    return workers._worker_state()._clusters


def test_a_worker_freezes_its_heap_when_a_task_has_ended(
    broker: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[int] = []
    monkeypatch.setattr(workers, "freeze_heap", lambda: settled.append(len(clusters())))
    assert offsets(settings(broker.bootstrap_servers), part(0, 3)) == [0, 1, 2]
    assert settled == [1], "while the cluster is kept"


def test_other_settings_use_other_connections(broker: KafkaServer) -> None:
    asked = settings(broker.bootstrap_servers)
    careful = settings(broker.bootstrap_servers, config={"isolation_level": "read_committed"})
    assert offsets(asked, part(0, 3)) == offsets(careful, part(0, 3)) == [0, 1, 2]
    assert len(clusters()) == 2


def test_clusters_are_bounded(broker: KafkaServer) -> None:
    for number in range(workers.MAX_CLUSTERS + 3):
        asked = settings(broker.bootstrap_servers, config={"client_id": f"query-{number}"})
        assert offsets(asked, part(0, 1)) == [0]
    assert len(clusters()) == workers.MAX_CLUSTERS


def test_idle_clusters_are_closed(broker: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        offsets(settings(broker.bootstrap_servers, config={"client_id": f"query-{number}"}), part(0, 1))
    monkeypatch.setattr(workers, "IDLE_TIMEOUT", -1.0)
    offsets(settings(broker.bootstrap_servers, config={"client_id": "another"}), part(0, 1))
    assert [home._config.client_id for home in clusters()] == ["another"]


def test_long_idle_connections_are_not_reused(broker: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall may have dropped them silently: a request would wait in vain for half a minute."""
    asked = settings(broker.bootstrap_servers)
    assert offsets(asked, part(0, 10)) == list(range(10))
    before = handshakes(broker)
    monkeypatch.setattr(workers, "IDLE_TIMEOUT", -1.0)
    assert offsets(asked, part(10, 20)) == list(range(10, 20))
    assert handshakes(broker) > before
    assert len(clusters()) == 1


def test_a_generator_that_is_closed_early(broker: KafkaServer) -> None:
    asked = settings(broker.bootstrap_servers, fetch_bytes=20_000)
    for _ in range(3):
        reading = read_ranges(asked, [part(0, 300, number) for number in range(4)])
        assert next(reading).num_rows > 0
        reading.close()  # type: ignore[attr-defined]
        assert offsets(asked, part(3, 290, 2)) == list(range(3, 290))
    (home,) = clusters()
    assert home.users == 0


def test_a_generator_that_outlives_the_connections(broker: KafkaServer) -> None:
    reading = read_ranges(settings(broker.bootstrap_servers, fetch_bytes=20_000), [part(0, 300)])
    next(reading)
    workers.close()
    reading.close()  # type: ignore[attr-defined]


def test_a_generator_that_is_collected_while_another_waits(broker: KafkaServer) -> None:
    """The garbage collector may close a generator at any point, also while the loop runs."""
    asked = settings(broker.bootstrap_servers, fetch_bytes=20_000)
    left = [read_ranges(asked, [part(0, 300)])]
    next(left[0])

    async def collect() -> None:
        left[0].close()  # type: ignore[attr-defined]

    workers._worker_state().run(collect())
    assert offsets(asked, part(3, 290, 2)) == list(range(3, 290))
    (home,) = clusters()
    assert home.users == 0


def test_adjacent_ranges_are_read_as_one(broker: KafkaServer) -> None:
    pieces = [part(start, start + 10, 2) for start in range(0, 200, 10)]
    assert offsets(settings(broker.bootstrap_servers), *pieces, part(5, 5), part(250, 260, 2)) == [
        *range(200),
        *range(250, 260),
    ]
    assert len(broker.history.of("Fetch")) < 8


def test_two_tasks_take_turns(broker: KafkaServer) -> None:
    asked = settings(broker.bootstrap_servers, fetch_bytes=20_000)
    first = read_ranges(asked, [part(0, 300)])
    second = read_ranges(asked, [part(0, 300, 1)])
    found: dict[str, list[int]] = {"first": [], "second": []}
    for one, other in zip(first, second, strict=True):
        found["first"] += one.column("offset").to_pylist()
        found["second"] += other.column("offset").to_pylist()
    assert found == {"first": list(range(300)), "second": list(range(300))}


def test_the_next_task_after_a_failed_one_works(broker: KafkaServer) -> None:
    asked = settings(broker.bootstrap_servers)
    with pytest.raises(DataLossError, match="COULD_NOT_READ_OFFSET_RANGE"):
        offsets(asked, part(1000, 1010))
    assert clusters() == []
    assert offsets(asked, part(0, 10)) == list(range(10))


def test_closed_connections_are_replaced(broker: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    asked = settings(broker.bootstrap_servers)
    assert offsets(asked, part(0, 10)) == list(range(10))
    broker.stop_node(1)
    broker.start_node(1)
    with caplog.at_level(logging.DEBUG, "asyncgroup.spark"):
        assert offsets(asked, part(20, 300)) == list(range(20, 300))
    assert "ConnectionLost" not in caplog.text, "the closed connection is noticed before it is used"
    assert "closed the connection" not in caplog.text


def test_several_threads_take_turns(broker: KafkaServer) -> None:
    """Spark has one thread for a worker's tasks; if there are more, one of them runs the loop at a time."""
    asked = settings(broker.bootstrap_servers, fetch_bytes=20_000)
    found: dict[int, list[int]] = {}

    def read(number: int) -> None:
        found[number] = offsets(asked, part(0, 300, number))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: list(range(300)) for number in range(4)}


FORKS = """
import os, sys
from asyncgroup.spark.source.executor import workers
from asyncgroup.spark.source.executor.workers import read_ranges
from tests.spark.source.reading import part, settings

asked = settings(sys.argv[1], fetch_bytes=20_000)

def read(ranges):
    return [offset for made in ranges for offset in made.column("offset").to_pylist()]

begun = read_ranges(asked, [part(0, 300)])
first = next(begun).column("offset").to_pylist()
parent = workers._worker_state()
child = os.fork()
if child == 0:
    begun.close()  # the parent's: it must not notice
    ok = parent._clusters[0].users == 1 and workers._worker_state() is not parent
    ok = ok and read(read_ranges(asked, [part(5, 290, 1)])) == list(range(5, 290))
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
assert first + read(begun) == list(range(300))
assert read(read_ranges(asked, [part(7, 280, 2)])) == list(range(7, 280))
print("good")
"""


def test_a_forked_process_has_its_own_state(broker: KafkaServer) -> None:
    """Spark's daemon forks workers; a child that used its parent's loop would break the parent's connections."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKS, broker.bootstrap_servers],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.stdout.strip(), done.returncode) == ("good", 0), done.stderr


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_a_reader_closed_by_the_garbage_collector_is_released_in_a_later_turn() -> None:
    """The collector may run at any point of the loop's code, which must not run the release in between."""
    released: list[object] = []

    class Cluster:
        is_broken = False

        async def release(self, reader: object) -> None:
            released.append(reader)

    state = workers._WorkerState()
    state._loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]

    async def collect() -> list[object]:
        state.release(Cluster(), None)  # type: ignore[arg-type]
        return list(released)

    assert state.run(collect()) == []
    state.close()
    assert released == [None]
