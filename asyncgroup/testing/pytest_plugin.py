"""The pytest plugin: fixtures with an embedded Kafka or Pulsar, and the markers `kafka` and `pulsar`.

`kafka_cluster`, `virtual_kafka` and `kafka_server` are for one test each, `session_kafka_server` (configured by
`kafka_session_options`) for all tests of a session; `pulsar_cluster`, `virtual_pulsar`, `pulsar_server` and
`session_pulsar_server` (`pulsar_session_options`) are the same for Pulsar.

It is registered as the entry point `pytest11`, so pytest imports it in every test suite of an environment with asyncgroup.
Until a test uses a fixture it imports only two small modules of asyncgroup, and it does not affect other tests.

The async fixtures run on the test's own event loop, by pytest-asyncio if it is loaded, otherwise by anyio's plugin. Those with
a server need neither.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from asyncgroup.testing.kit.contexts import ItemContext, SessionContext, server_of, without_traceback

if TYPE_CHECKING:
    import asyncio

    from asyncgroup.testing.kafka_server import KafkaServer
    from asyncgroup.testing.pulsar_server import PulsarServer

__all__ = [
    "kafka_server",
    "kafka_session_options",
    "pulsar_server",
    "pulsar_session_options",
    "pytest_configure",
    "pytest_generate_tests",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
    "session_kafka_server",
    "session_pulsar_server",
]

_MARKER = (
    "kafka(topics, nodes, faults, slow, unknown_topics, max_virtual_time, **options): the cluster of the fixtures kafka_cluster, "
    "virtual_kafka and kafka_server; topics={'orders': 6}, faults=[{'api': 'Fetch', 'nth': 2, 'delay': 1.0}], "
    "slow={2: 0.1}; further options are those of asyncgroup.broker.EmbeddedCluster"
)
_PULSAR_MARKER = (
    "pulsar(topics, brokers, faults, slow, unknown_topics, max_virtual_time, **options): the brokers of the fixtures pulsar_cluster, "
    "virtual_pulsar and pulsar_server; topics={'orders': 6}, faults=[{'api': 'Send', 'nth': 2, 'delay': 1.0}], "
    "slow={2: 0.1}; further options are those of asyncgroup.pulsar_broker.EmbeddedPulsar"
)
_VIRTUAL = {"virtual_kafka": "kafka", "virtual_pulsar": "pulsar"}
"""The fixtures in virtual time, with their markers."""
_OF_SESSION = {"session_kafka_server": "kafka", "session_pulsar_server": "pulsar"}
"""The fixtures that all tests share, with their markers."""


@pytest.fixture
def kafka_server(request: pytest.FixtureRequest) -> Iterator[KafkaServer]:
    """A Kafka cluster in a separate thread, for blocking clients (confluent-kafka, Java, Spark)."""
    from asyncgroup.testing.kit.clusters import running_server

    with without_traceback(), running_server(ItemContext(request.node)) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_session_options() -> Mapping[str, Any]:
    """The options of `session_kafka_server`, as for the marker `kafka`. Override it in your conftest.py."""
    return {}


@pytest.fixture(scope="session")
def session_kafka_server(
    kafka_session_options: Mapping[str, Any], request: pytest.FixtureRequest
) -> Iterator[KafkaServer]:
    """A Kafka cluster in a separate thread that all tests of a session share, for blocking and asyncio clients."""
    from asyncgroup.testing.kit.clusters import running_server

    with (
        without_traceback(),
        running_server(SessionContext(request.session, kafka_session_options)) as server,
    ):
        yield server


@pytest.fixture
def pulsar_server(request: pytest.FixtureRequest) -> Iterator[PulsarServer]:
    """A Pulsar in a separate thread, for blocking clients (pulsar-client, Java)."""
    from asyncgroup.testing.kit.pulsar_clusters import running_pulsar_server

    with without_traceback(), running_pulsar_server(ItemContext(request.node, "pulsar")) as server:
        yield server


@pytest.fixture(scope="session")
def pulsar_session_options() -> Mapping[str, Any]:
    """The options of `session_pulsar_server`, as for the marker `pulsar`. Override it in your conftest.py."""
    return {}


@pytest.fixture(scope="session")
def session_pulsar_server(
    pulsar_session_options: Mapping[str, Any], request: pytest.FixtureRequest
) -> Iterator[PulsarServer]:
    """A Pulsar in a separate thread that all tests of a session share, for blocking and asyncio clients."""
    from asyncgroup.testing.kit.pulsar_clusters import running_pulsar_server

    with (
        without_traceback(),
        running_pulsar_server(SessionContext(request.session, pulsar_session_options, "pulsar")) as server,
    ):
        yield server


# -- hooks --------------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and the async fixtures with the decorator of the suite's async plugin."""
    config.addinivalue_line("markers", _MARKER)
    config.addinivalue_line("markers", _PULSAR_MARKER)
    from asyncgroup.testing.kit import fixtures

    plugins = config.pluginmanager
    decorate = _async_fixture(plugins)
    holder = ModuleType("asyncgroup_fixtures")
    for name in fixtures.__all__:
        setattr(holder, name, decorate(getattr(fixtures, name)))
    plugins.register(holder, "asyncgroup_fixtures")
    if plugins.hasplugin("anyio") and not plugins.hasplugin("asyncio"):
        plugins.register(_OnlyAnyio(), "asyncgroup_only_anyio")


def _async_fixture(plugins: pytest.PytestPluginManager) -> Callable[[Callable[..., Any]], Any]:
    if plugins.hasplugin("asyncio"):
        import pytest_asyncio

        return pytest_asyncio.fixture
    if plugins.hasplugin("anyio"):
        return pytest.fixture
    return _without_async_plugin


def _without_async_plugin(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    def refuse() -> None:
        _refuse(function.__name__)

    del refuse.__wrapped__  # pytest would take its parameters for fixtures
    return pytest.fixture(refuse)


def _refuse(fixture: str) -> NoReturn:
    pytest.fail(
        f"{fixture} runs on the test's event loop: it needs pytest-asyncio and @pytest.mark.asyncio, or "
        f"@pytest.mark.anyio; {server_of(fixture)} needs neither",
        pytrace=False,
    )


class _OnlyAnyio:
    """A plugin for suites with anyio and without pytest-asyncio, for a clear error if a test lacks anyio's marker.

    anyio, which asyncgroup installs, ignores such tests, and pytest fails with an internal error on an async fixture that
    no plugin handles.
    """

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: Any, request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        function = fixturedef.func
        if (
            getattr(function, "__module__", None) != "asyncgroup.testing.kit.fixtures"
            or "anyio_backend" in request.fixturenames
        ):
            return (yield)
        fixturedef.func = lambda **_: _refuse(fixturedef.argname)
        try:
            return (yield)
        finally:
            fixturedef.func = function


class _VirtualLoop:
    """A plugin that is registered while a test in virtual time is collected; pytest-asyncio asks it for the loop."""

    def __init__(self, markers: Collection[str]) -> None:
        self._markers = markers

    def pytest_asyncio_loop_factories(self, item: pytest.Item) -> Mapping[str, Callable[[], Any]]:
        limits = [ItemContext(item, each).options().get("max_virtual_time") for each in self._markers]
        limit = next((each for each in limits if each is not None), None)
        return {"virtual": functools.partial(_new_virtual_loop, limit)}


def _new_virtual_loop(max_virtual_time: Any) -> asyncio.AbstractEventLoop:
    from asyncgroup.testing.kit.kit_options import is_duration
    from asyncgroup.testing.virtual.loop import VirtualTimeLoop

    # the fixture reports a wrong value
    return (
        VirtualTimeLoop(max_virtual_time=max_virtual_time)
        if is_duration(max_virtual_time)
        else VirtualTimeLoop()
    )


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, None, None]:
    """Give a test that uses `virtual_kafka` or `virtual_pulsar` a loop in virtual time.

    If any plugin implements pytest-asyncio's hook for loops, it has to answer for every test of the suite. So the hook
    is registered only while such a test is collected.
    """
    markers = [marker for fixture, marker in _VIRTUAL.items() if fixture in metafunc.fixturenames]
    if not markers:
        return (yield)
    plugins = metafunc.config.pluginmanager
    plugin = _VirtualLoop(markers)
    plugins.register(plugin)
    try:
        return (yield)
    finally:
        plugins.unregister(plugin)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test whose client requested a topic that does not exist, unless the test has failed anyway."""
    context = ItemContext(item)
    try:
        result = yield
    except BaseException as error:
        asyncio = sys.modules.get("asyncio")  # not imported here: the plugin is loaded in every suite
        is_cancelled = asyncio is not None and isinstance(error, asyncio.CancelledError)
        if (message := context.unknown_topic_message) is None or not is_cancelled:
            raise
    else:
        if (message := context.unknown_topic_message) is None:
            return result
    raise pytest.fail.Exception(message, pytrace=False) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add a topic that does not exist, and the state and the last requests of each cluster, to the report of a failed test."""
    report = yield
    context = ItemContext(item)
    if call.when == "call":
        context.set_outcome(failed=call.excinfo is not None)
        message = context.unknown_topic_message if report.failed else None
        if (
            message is not None and message not in report.longreprtext
        ):  # the test has another error, perhaps of this
            report.sections.append(("Unknown topic", message))
    fixtures, of_session = getattr(item, "fixturenames", ()), SessionContext(item.session).reports
    shared = {
        marker: of_session[marker]
        for name, marker in _OF_SESSION.items()
        if name in fixtures and marker in of_session
    }
    reports = {**shared, **context.reports}
    for marker, describe_cluster in reports.items() if report.failed else ():
        try:
            report.sections.append((marker.capitalize(), describe_cluster()))
        except Exception as error:  # noqa: BLE001  a broken cluster must not hide how the test failed
            report.sections.append((marker.capitalize(), f"cannot be described: {error!r}"))
    if call.when == "teardown":
        context.clear()
    return report
