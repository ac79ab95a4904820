"""The pytest plugin: fixtures `kafka_cluster`, `virtual_kafka` and `kafka_server`, and the marker `kafka`.

Registered as the entry point `pytest11`, so pytest imports it in every suite of an environment that has asyncgroup.
Hence it imports nothing of asyncgroup until a test uses a fixture, and touches nothing of tests that don't.

The two async fixtures run on the test's own event loop: by pytest-asyncio where that is loaded, or else by anyio's
plugin. `kafka_server` needs neither.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import asyncio

    from asyncgroup.testing.kafka_server import KafkaServer

__all__ = [
    "ItemCase",
    "kafka_server",
    "pytest_configure",
    "pytest_generate_tests",
    "pytest_runtest_makereport",
]

_MARKER = (
    "kafka(topics, nodes, faults, slow, max_virtual_time, **options): the cluster of the fixtures kafka_cluster, "
    "virtual_kafka and kafka_server; topics={'orders': 6}, faults=[{'api': 'Fetch', 'nth': 2, 'delay': 1.0}], "
    "slow={2: 0.1}; further options are those of asyncgroup.broker.EmbeddedCluster"
)

_failed = pytest.StashKey[bool]()
_story = pytest.StashKey[Callable[[], str]]()


class ItemCase:
    """A pytest item as `asyncgroup.testing.kit.Case`."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def __repr__(self) -> str:
        return f"<ItemCase {self._item.nodeid}>"

    def options(self) -> Mapping[str, Any]:
        """The arguments of all `kafka` markers; those nearer to the test win."""
        options: dict[str, Any] = {}
        for marker in self._item.iter_markers("kafka"):
            if marker.args:
                pytest.fail(f"@pytest.mark.kafka takes keywords only, not {marker.args!r}", pytrace=False)
            options = {**marker.kwargs, **options}
        return options

    def failed(self) -> bool:
        """Whether the test itself has failed or was skipped half-way."""
        return self._item.stash.get(_failed, True)

    def tells(self, story: Callable[[], str]) -> None:
        """What to show if the test fails."""
        self._item.stash[_story] = story


@contextmanager
def told_plainly() -> Iterator[None]:
    """Errors that say by themselves what the test did wrong are told without a traceback."""
    from asyncgroup.broker import Refused, UnusedFaults
    from asyncgroup.errors import ConfigError, UsageError

    try:
        yield
    except (ConfigError, Refused, UnusedFaults, UsageError) as error:
        raise pytest.fail.Exception(f"{type(error).__name__}: {error}", pytrace=False) from None


@pytest.fixture
def kafka_server(request: pytest.FixtureRequest) -> Iterator[KafkaServer]:
    """A Kafka cluster in a thread of its own, for clients that block (confluent-kafka, Java, Spark)."""
    from asyncgroup.testing.kit import running_server

    with told_plainly(), running_server(ItemCase(request.node)) as server:
        yield server


# -- hooks --------------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and the async fixtures as the suite's own async plugin wants them."""
    config.addinivalue_line("markers", _MARKER)
    from asyncgroup.testing import pytest_fixtures

    decorate = _async_fixture(config.pluginmanager)
    holder = ModuleType("asyncgroup_fixtures")
    for name in pytest_fixtures.__all__:
        setattr(holder, name, decorate(getattr(pytest_fixtures, name)))
    config.pluginmanager.register(holder, "asyncgroup_fixtures")


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
        pytest.fail(
            f"{function.__name__} runs on the test's event loop, so it needs pytest-asyncio (or anyio's plugin); "
            "kafka_server needs neither",
            pytrace=False,
        )

    del refuse.__wrapped__  # pytest would look for its arguments there
    return pytest.fixture(refuse)


class _VirtualLoop:
    """A plugin for a moment: pytest-asyncio asks it for the loops of a test that uses `virtual_kafka`."""

    def pytest_asyncio_loop_factories(self, item: pytest.Item) -> Mapping[str, Callable[[], Any]]:
        limit = ItemCase(item).options().get("max_virtual_time")
        return {"virtual": functools.partial(_new_virtual_loop, limit)}


def _new_virtual_loop(max_virtual_time: float | None) -> asyncio.AbstractEventLoop:
    from asyncgroup.testing.loop import VirtualTimeLoop

    return (
        VirtualTimeLoop() if max_virtual_time is None else VirtualTimeLoop(max_virtual_time=max_virtual_time)
    )


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, None, None]:
    """Give a test that uses `virtual_kafka` a loop in virtual time.

    pytest-asyncio asks for loops as long as anybody implements its hook, and then wants an answer for every test of
    the suite. So the hook is there for these tests only.
    """
    if "virtual_kafka" not in metafunc.fixturenames:
        return (yield)
    plugins = metafunc.config.pluginmanager
    plugin = _VirtualLoop()
    plugins.register(plugin)
    try:
        return (yield)
    finally:
        plugins.unregister(plugin)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the cluster was asked, when a test with one has failed."""
    report = yield
    if call.when == "call":
        item.stash[_failed] = call.excinfo is not None
    story = item.stash.get(_story, None)
    if story is not None and report.failed:
        try:
            report.sections.append(("Kafka", story()))
        except Exception as error:  # noqa: BLE001  a broken cluster must not hide how the test failed
            report.sections.append(("Kafka", f"cannot be told: {error!r}"))
    return report
