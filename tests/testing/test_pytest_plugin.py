"""The pytest plugin in test suites of its own, as users have them."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

from tests.profiles import thinned
from tests.testing.suites import run_suite

ASYNC = """
import asyncio, sys
import pytest
from asyncgroup.testing import VirtualTimeLoop

@pytest.mark.asyncio
@pytest.mark.kafka(topics={"orders": 6, "bills": {"partitions": 2, "configs": {"cleanup.policy": "compact"}}}, nodes=3)
class TestCluster:
    async def test_as_the_marker_says(self, kafka_cluster):
        assert [len(kafka_cluster.topic(name).partitions) for name in ("orders", "bills")] == [6, 2]
        assert len(kafka_cluster.nodes) == 3
        host, port = kafka_cluster.bootstrap_servers.split(",")[2].split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        await writer.wait_closed()

    @pytest.mark.kafka(nodes=1, slow={1: 0.5}, faults=[{"api": "Fetch", "topic": "t", "optional": True, "error": "NOT_LEADER_OR_FOLLOWER"}])
    async def test_nearer_markers_win(self, kafka_cluster):
        assert len(kafka_cluster.nodes) == 1
        assert len(kafka_cluster.topic("orders").partitions) == 6
        assert kafka_cluster.nodes[1].delay == 0.5
        assert bool(kafka_cluster.faults)

@pytest.mark.asyncio
async def test_without_a_marker(kafka_cluster):
    assert kafka_cluster.bootstrap_servers.startswith("127.0.0.1:")

@pytest.mark.asyncio
@pytest.mark.kafka(max_virtual_time=100_000, topics="orders")
async def test_virtual(virtual_kafka):
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    await virtual_kafka.advance(90_000)
    assert asyncio.get_running_loop().time() == 90_000
    assert len(virtual_kafka.network.listeners()) == 1

@pytest.fixture
def via_another_fixture(virtual_kafka):
    return virtual_kafka

@pytest.mark.asyncio
@pytest.mark.parametrize("times", [1, 2])
async def test_virtual_through_a_fixture(via_another_fixture, times):
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)

@pytest.mark.asyncio
async def test_the_loops_of_others_are_not_touched(request):
    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    assert "virtual" not in request.node.name

@pytest.mark.kafka(topics=["orders"], nodes=2)
def test_server(kafka_server):
    kafka_server.stop_node(1)
    assert kafka_server.leader("orders", 0) == 2
"""

WRONG = """
import pytest

@pytest.mark.asyncio
@pytest.mark.kafka(faults=[{"api": "Fetch", "topic": "orders", "drop": True}])
async def test_unused_fault(kafka_cluster):
    pass

@pytest.mark.kafka(faults={"api": "Fetch", "delay": 1.0})
def test_unused_fault_of_a_server(kafka_server):
    pass

@pytest.mark.asyncio
@pytest.mark.kafka(topics="orders", faults={"api": "Fetch", "delay": 1.0})
async def test_own_failure(kafka_cluster):
    from asyncgroup import ClientConfig, Cluster
    async with Cluster(kafka_cluster.bootstrap_servers, ClientConfig(client_id="my-client")):
        assert kafka_cluster.leader("orders", 0) == 2

@pytest.mark.kafka(faults={"api": "Fetch", "delay": 1.0})
def test_own_failure_with_a_server(kafka_server):
    assert kafka_server.groups == ["mine"]

@pytest.mark.kafka(faults={"api": "Fetch", "delay": 1.0})
def test_skipped_half_way(kafka_server):
    pytest.skip("not today")

@pytest.mark.kafka(topicks="orders")
def test_misspelt(kafka_server):
    pass

@pytest.mark.kafka(topics={"orders": {"partition": 3}})
def test_misspelt_topic(kafka_server):
    pass

@pytest.mark.kafka(topics=7)
def test_no_topics(kafka_server):
    pass

@pytest.mark.kafka(faults={"api": "Fetch", "errror": 3})
def test_misspelt_fault(kafka_server):
    pass

@pytest.mark.kafka(topics={"b@d": 1})
def test_refused_topic(kafka_server):
    pass

@pytest.mark.kafka("orders")
def test_positional(kafka_server):
    pass

@pytest.mark.asyncio(loop_scope="module")
async def test_another_loop(kafka_cluster):
    pass

def test_that_blocks(kafka_cluster):
    pass

@pytest.mark.asyncio
async def test_both(virtual_kafka, kafka_cluster):
    assert virtual_kafka.nodes[1].port != kafka_cluster.nodes[1].port
"""

UNRELATED = """
import asyncio, sys
import pytest

@pytest.mark.asyncio
@pytest.mark.parametrize("number", [1, 2])
async def test_async(number):
    await asyncio.sleep(0)

class TestSync:
    def test_sync(self, request, tmp_path):
        assert "kafka_cluster" not in request.fixturenames

@pytest.mark.kafka
def test_a_marker_of_their_own():
    ours = sorted(name for name in sys.modules if name.startswith("asyncgroup"))
    assert ours == ["asyncgroup", "asyncgroup.lazy_names", "asyncgroup.testing", "asyncgroup.testing.kit",
                    "asyncgroup.testing.kit.contexts", "asyncgroup.testing.kit.fixtures",
                    "asyncgroup.testing.pytest_plugin"]
    assert "aiokafka" not in sys.modules
"""


def outcomes(text: str) -> dict[str, str]:
    """Return the outcome of each test by its name."""
    return {
        name: word
        for word, name in re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED) \S*?::(\S+)", text, re.MULTILINE)
    }


def test_the_fixtures(tmp_path: Path) -> None:
    done = run_suite(tmp_path, ASYNC)
    assert done.returncode == 0, done.stdout
    assert set(outcomes(done.stdout).values()) == {"PASSED"}
    assert "test_virtual_through_a_fixture[1]" in done.stdout  # without the name of the loop


@pytest.fixture(scope="module", params=thinned([("-n", "2"), ()]), ids=str)
def wrong(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of a suite with every kind of mistake, also from pytest-xdist."""
    return run_suite(tmp_path_factory.mktemp("wrong"), WRONG, *request.param).stdout


@pytest.mark.parametrize(
    ("name", "outcome", "message"),
    [
        (
            "test_unused_fault",
            "ERROR",
            "1 fault(s) were never hit: <Fault on Fetch topic='orders' nth=1, 0 hits>",
        ),
        ("test_unused_fault_of_a_server", "ERROR", "1 fault(s) were never hit: <Fault on Fetch nth=1"),
        (
            "test_misspelt",
            "ERROR",
            "topicks='orders' is not allowed: @pytest.mark.kafka has no such option; did you mean topics?",
        ),
        ("test_misspelt_topic", "ERROR", "a topic has configs, partitions, records, replication_factor"),
        ("test_no_topics", "ERROR", "topics=7 is not allowed: a name, a list of names"),
        ("test_misspelt_fault", "ERROR", "errror=3 is not allowed: a fault's options are node, topic, group"),
        ("test_refused_topic", "ERROR", "Refused: "),
        ("test_positional", "ERROR", "takes keywords only, not ('orders',)"),
        (
            "test_that_blocks",
            "ERROR",
            "kafka_cluster runs on the event loop of an async test, and this test is not async",
        ),
        ("test_another_loop", "ERROR", 'Set asyncio_default_fixture_loop_scope = "module"'),
    ],
)
def test_mistakes_are_reported_without_a_traceback(wrong: str, name: str, outcome: str, message: str) -> None:
    assert outcomes(wrong)[name] == outcome
    assert message in wrong
    assert "pytest_asyncio/plugin.py" not in wrong  # that is, without a traceback
    assert "During handling of" not in wrong


@pytest.mark.parametrize("name", ["test_own_failure", "test_own_failure_with_a_server"])
def test_a_tests_own_failure_is_reported_with_the_requests(wrong: str, name: str) -> None:
    assert wrong.count(f"::{name} ") == 1
    assert outcomes(wrong)[name] == "FAILED"
    assert "- Kafka -" in wrong
    assert re.search(r"node 1  my-client  Metadata v\d+: ok after", wrong)


def test_skipped_tests_and_two_fixtures_in_one_test(wrong: str) -> None:
    assert "1 skipped" in wrong
    assert "ERROR test_it.py::test_skipped_half_way" not in wrong
    assert outcomes(wrong)["test_both"] == "PASSED"


@pytest.mark.parametrize(
    "arguments",
    [(), ("-p", "no:asyncio", "-p", "no:anyio", "-k", "not test_async")],
    ids=["as usual", "without async plugins"],
)
def test_a_suite_that_does_not_use_the_fixtures_is_not_affected(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    suite = UNRELATED.replace("@pytest.mark.asyncio\n", "") if arguments else UNRELATED
    done = run_suite(tmp_path, suite, *arguments, fork=False)
    assert done.returncode == 0, done.stdout
    if not arguments:
        assert re.findall(r"PASSED \S+?::(\S+)", done.stdout) == [
            "test_async[1]",
            "test_async[2]",
            "TestSync::test_sync",
            "test_a_marker_of_their_own",
        ]


def test_without_an_async_plugin(tmp_path: Path) -> None:
    """`kafka_server` needs no async plugin; the errors of the others name the plugins that they need."""
    tests = """
    def test_server(kafka_server):
        assert kafka_server.groups == []

    def test_cluster(kafka_cluster): ...
    def test_virtual(virtual_kafka): ...
    """.replace("\n    ", "\n")
    done = run_suite(tmp_path, tests, "-p", "no:asyncio", "-p", "no:anyio")
    assert outcomes(done.stdout) == {
        "test_server": "PASSED",
        "test_cluster": "ERROR",
        "test_virtual": "ERROR",
    }
    assert "virtual_kafka runs on the test's event loop: it needs pytest-asyncio" in done.stdout


ANYIO = tuple(map(int, importlib.metadata.version("anyio").split(".")[:2]))


@pytest.mark.parametrize(
    "beside",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.skipif(
                ANYIO < (4, 12),
                reason="beside pytest-asyncio, anyio runs async fixtures of plugins from 4.12 on",
            ),
        ),
    ],
    ids=["alone", "beside pytest-asyncio"],
)
def test_with_anyio(tmp_path: Path, beside: bool) -> None:
    tests = """
    import asyncio, pytest
    from asyncgroup.testing import VirtualTimeLoop
    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(request):
        virtual = request.node.name == "test_virtual"
        return "asyncio", {"loop_factory": VirtualTimeLoop} if virtual else {}

    async def test_cluster(kafka_cluster):
        _, writer = await asyncio.open_connection("127.0.0.1", kafka_cluster.nodes[1].port)
        writer.close()

    async def test_virtual(virtual_kafka):
        await virtual_kafka.advance(3600)

    async def test_not_virtual(virtual_kafka): ...
    """.replace("\n    ", "\n")
    done = run_suite(tmp_path, tests, *([] if beside else ["-p", "no:asyncio"]))
    expected = {"test_cluster": "PASSED", "test_virtual": "PASSED", "test_not_virtual": "ERROR"}
    assert outcomes(done.stdout) == expected, done.stdout
    assert "virtual_kafka needs a test on a VirtualTimeLoop" in done.stdout


def test_a_suite_with_its_own_event_loops(tmp_path: Path) -> None:
    """The suite's hook applies to all tests except those with `virtual_kafka`; `auto` mode needs no asyncio marker."""
    conftest = """
import asyncio
class OwnLoop(asyncio.SelectorEventLoop): pass
def pytest_asyncio_loop_factories(item):
    return {"own": OwnLoop}
"""
    tests = """
import asyncio
async def test_own(kafka_cluster):
    assert type(asyncio.get_running_loop()).__name__ == "OwnLoop"
async def test_virtual(virtual_kafka):
    assert type(asyncio.get_running_loop()).__name__ == "VirtualTimeLoop"
"""
    done = run_suite(
        tmp_path,
        tests,
        ini="asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n",
        conftest=conftest,
    )
    assert set(outcomes(done.stdout).values()) == {"PASSED"}, done.stdout


def test_a_cluster_that_cannot_be_described_does_not_hide_the_failure(tmp_path: Path) -> None:
    tests = """
def test_broken(kafka_server):
    kafka_server.call(lambda cluster: setattr(cluster, "_inner", None))
    assert 1 == 2
"""
    done = run_suite(tmp_path, tests)
    assert outcomes(done.stdout)["test_broken"] in {"FAILED", "ERROR"}
    assert "assert 1 == 2" in done.stdout
    assert "cannot be described: AttributeError" in done.stdout
    assert "INTERNALERROR" not in done.stdout


def test_clusters_are_garbage_collected_after_their_tests(tmp_path: Path) -> None:
    """pytest keeps its items until the end of the session; they must not refer to their clusters."""
    tests = """
import gc
import pytest
from asyncgroup.broker import EmbeddedCluster
@pytest.mark.asyncio
@pytest.mark.parametrize("fails", [False, True])
async def test_one(kafka_cluster, fails):
    assert not fails
@pytest.mark.asyncio
async def test_virtual(virtual_kafka):
    pass
def test_server(kafka_server):
    pass
def test_all_are_gone():
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, EmbeddedCluster)]
"""
    done = run_suite(tmp_path, tests)
    assert outcomes(done.stdout)["test_all_are_gone"] == "PASSED", done.stdout
