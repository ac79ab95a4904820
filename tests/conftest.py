"""Configuration of the test suite: event loops, checks for leftover tasks and connections, selection of tests.

- Async tests need no marker of pytest-asyncio.
- An async test in one of the directories `IN_VIRTUAL_TIME` runs on a fresh `VirtualTimeLoop`, unless it is marked `real`,
  and so does one marked `virtual` elsewhere; every other async test on a real event loop. The arguments of `virtual` are
  passed to the loop: `@pytest.mark.virtual(max_virtual_time=86_400)`.
  A test with `@pytest.mark.asyncio(loop_factories=["real", "virtual"])` runs on both loops.
- Every async test that passes must have ended its tasks, and on the virtual loop its connections and listeners. Every
  test must leave the handler of SIGTERM as it was.
- The fixtures of `tests/apache_kafka.py` provide a real Apache Kafka, those of `tests/apache_pulsar.py` a real Apache Pulsar,
  those of `tests/shared_spark.py` a Spark session.
- Tests marked `soak` are deselected unless `--soak` is given, those marked `full` unless `--full` is, which also draws
  more random cases (`tests/profiles.py`).
- Tests that need a JVM have the marker `java`; worker processes share the tests (`tests/workers.py`).
- The random choices of Pulsar clients follow from the name of the test (`tests/seeded_clients.py`).
- Every skipped test is listed at the end with its reason.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path

import pytest
import pytest_asyncio

from asyncgroup.java import user_cache
from asyncgroup.testing import Network, VirtualTimeLoop, current_network
from asyncgroup.testing.virtual.errors import describe_tasks
from tests.apache_kafka import (
    apache_kafka,
    apache_kafka_3,
    kafka_39,
    kafka_at_hand,
    kafka_to_break,
    pytest_collection_finish,
    pytest_runtest_teardown,
)
from tests.apache_pulsar import PLUGIN, SharedPulsar, apache_pulsar, pulsar_at_hand, pulsar_to_break
from tests.asyncio_errors import no_asyncio_errors
from tests.interop.java_tools import java_tools
from tests.loops.factories import LOOPS, loop_factories, reason_to_skip
from tests.profiles import LEFT_OUT, cases_to_run, choose_profile, current_profile, story_cases
from tests.seeded_clients import seed_pulsar_clients
from tests.shared_spark import spark, spark_gateway, spark_with_kafka
from tests.workers import (
    are_files_named,
    mark_java,
    pytest_configure_node,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
    share_groups,
    sort_for_workers,
)

__all__ = [
    "apache_kafka",
    "apache_kafka_3",
    "apache_pulsar",
    "java_tools",
    "kafka_39",
    "kafka_at_hand",
    "kafka_to_break",
    "no_asyncio_errors",
    "pulsar_at_hand",
    "pulsar_to_break",
    "pytest_collection_finish",
    "pytest_configure_node",
    "pytest_runtest_teardown",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
    "spark",
    "spark_gateway",
    "spark_with_kafka",
]

TESTS = Path(__file__).parent

IN_VIRTUAL_TIME = (
    "admin", "broker", "cli", "cluster/requests", "consumer", "demo", "group", "guide", "offsets", "producer", "pulsar",
    "scenario", "telemetry", "workqueue",
)  # fmt: skip
"""Directories whose async tests run in virtual time."""

VIRTUAL_TURNS = 20
"""Iterations of the virtual loop after a test, for tasks that it has cancelled or closed without waiting."""

REAL_GRACE = 5.0
"""The longest time in seconds that tasks of a finished test on a real loop may take to end."""

pytest.register_assert_rewrite(
    "tests.stories", "tests.simulate", "tests.broker"
)  # failed stories show the values

_passed = pytest.StashKey[bool]()
_at_sigterm = pytest.StashKey[object]()


def pytest_configure(config: pytest.Config) -> None:
    """Choose the profile, and restore Python's SIGINT handler if a shell runs the suite in the background.

    Such a shell makes its child processes ignore SIGINT; the programs that tests start would inherit that. An environment
    that forbids compiled modules beside the sources gets them in the user cache: without them each worker and program
    compiles all modules again, a fifth of the time of the suite.
    """
    gc.disable()  # until the tests run: collecting them only adds objects
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(user_cache() / "compiled"))
    is_full = config.getoption("--full") or config.getoption("--soak")
    choose_profile("full" if is_full else current_profile())
    config.pluginmanager.register(SharedPulsar(config), PLUGIN)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Generator[None, object, object]:
    """Let Python's garbage collector leave out the collected tests: it took an eighth of the CPU time of the tests.

    What is garbage by now is left out as well: to look for it took half a second of each worker. A wrapper, since the hook
    of a worker process ends the call of all others.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()
    return (yield)


# -- event loops --------------------------------------------------------------------------------------------------------


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the event loops that `item` runs on, by name (a hook of pytest-asyncio)."""
    is_virtual = _is_in_virtual_time(item.path.parent) and item.get_closest_marker("real") is None
    return loop_factories(item, in_virtual_time=is_virtual)


@functools.cache
def _is_in_virtual_time(directory: Path) -> bool:
    return any(directory.is_relative_to(TESTS / room) for room in IN_VIRTUAL_TIME)


@pytest_asyncio.fixture(loop_scope="function")
async def network() -> Network:
    """The in-memory network of a virtual test."""
    return current_network()


# -- leftover tasks and connections -------------------------------------------------------------------------------------


def pytest_itemcollected(item: pytest.Item) -> None:
    """Make `nothing_left` the first fixture of every async test, so that it ends after all other fixtures."""
    mark_java(item)
    if not isinstance(item, pytest.Function) or not pytest_asyncio.is_async_test(item):
        return
    if (reason := reason_to_skip(item)) is not None:
        item.add_marker(pytest.mark.skip(reason))
    marker = item.get_closest_marker("asyncio")
    own_loop = marker is None or marker.kwargs.get("loop_scope", "function") == "function"
    # a loop shared by several tests also runs tasks of fixtures with a wider scope, which must not end with the test
    if own_loop and nothing_left.__name__ not in item.fixturenames:
        item.fixturenames.insert(0, nothing_left.__name__)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_passed] = report.passed
    if report.when == "teardown" and report.passed:
        _fail_on_changed_handler(item, report)
    let_pyspark_propagate()  # before pytest adds its handlers for the next phase
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed clients, and remember the handler of SIGTERM. That of SIGINT is PySpark's from the first Spark session on."""
    seed_pulsar_clients(item.nodeid)
    item.stash[_at_sigterm] = signal.getsignal(signal.SIGTERM)


def _fail_on_changed_handler(item: pytest.Item, report: pytest.TestReport) -> None:
    """Fail a test that left its handler of SIGTERM to the tests after it."""
    before, left = item.stash[_at_sigterm], signal.getsignal(signal.SIGTERM)
    if left is not before:
        signal.signal(signal.SIGTERM, before)  # type: ignore[arg-type]
        report.outcome = "failed"
        report.longrepr = f"the test left its handler of SIGTERM: {left!r}"


@pytest_asyncio.fixture(loop_scope="function")
async def nothing_left(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Fail a test that passed if it left a task, or on a virtual loop a connection or listener."""
    yield
    if not request.node.stash.get(_passed, False):
        return  # a failed test reports its own error; the runner cancels its remaining tasks
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualTimeLoop):
        for _ in range(VIRTUAL_TURNS):
            await asyncio.sleep(0)
        _fail_on_open_network(loop.network)
    elif running := _other_tasks():
        await asyncio.wait(running, timeout=REAL_GRACE)
    if left := _other_tasks():
        pytest.fail(f"the test left {len(left)} task(s) running:\n{describe_tasks(left)}", pytrace=False)


def _other_tasks() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


def _fail_on_open_network(network: Network) -> None:
    left = [*map(repr, network.connections()), *(f"listener {ip}:{port}" for ip, port in network.listeners())]
    if left:
        pytest.fail("the test left open in the network:\n  - " + "\n  - ".join(left), pytrace=False)


# -- logs of PySpark ----------------------------------------------------------------------------------------------------


def let_pyspark_propagate() -> None:
    """Let PySpark's loggers propagate: pytest adds its own handlers to those that do not.

    `PySparkLogger.addHandler` gives each handler a JSON formatter, which would then format the logs of all later tests,
    and raises for an exception that has no text.
    """
    for logger in list(logging.root.manager.loggerDict.values()):
        if type(logger).__name__ == "PySparkLogger":
            logger.propagate = True  # type: ignore[union-attr]


# -- selection of tests -------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak", action="store_true", help="run the long soak tests as well, with all random cases"
    )
    parser.addoption(
        "--full", action="store_true", help="run all but the long soak tests, with more random cases"
    )
    parser.addoption(
        "--loop", choices=LOOPS, default="asyncio", help="start tasks eagerly, or use uvloop in real time"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Item] | None:
    """Collect no test that the quick profile leaves out: collecting them took longer than many tests."""
    if not inspect.isfunction(obj) or not name.startswith("test_") or not _is_thinned(collector.config):
        return None
    own = {mark.name for mark in getattr(obj, "pytestmark", ())}
    is_left_out = any(each in own or collector.get_closest_marker(each) for each in LEFT_OUT)
    return [] if is_left_out else None


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Leave out the cases that the quick profile does not run, before pytest makes a test of each."""
    if _is_thinned(metafunc.config):
        metafunc._calls = cases_to_run(metafunc.definition.nodeid, metafunc._calls)


def _is_thinned(config: pytest.Config) -> bool:
    """Return whether this run has the tests and cases of the quick profile: those of named files all run."""
    return current_profile() == "quick" and not are_files_named(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        sort_for_workers(items)
        share_groups(config, items)
    if config.getoption("--soak"):
        return
    left_out = LEFT_OUT if current_profile() == "quick" else ("soak",)
    deselected = [item for item in items if any(marker.name in left_out for marker in item.iter_markers())]
    if deselected:
        gone = set(deselected)
        selected = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=deselected)
        items[:] = selected


def pytest_report_header() -> str:
    """Show the profile."""
    is_quick = current_profile() == "quick"
    return f"profile: {current_profile()}" + (
        ", two cases of each story" * (is_quick and story_cases() == "two")
    )


# -- terminal summary ---------------------------------------------------------------------------------------------------


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List every skipped test with its reason, so that skips are not overlooked."""
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    terminalreporter.section(f"{len(skipped)} skipped")
    for report in skipped:
        terminalreporter.write_line(f"{report.nodeid}: {_skip_reason(report)}")


def _skip_reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    reason = where[2] if isinstance(where, tuple) else str(where)
    return reason.removeprefix("Skipped: ")
