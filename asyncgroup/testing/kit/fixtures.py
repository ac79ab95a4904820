"""The async fixtures of the pytest plugin as plain functions; `pytest_plugin` turns them into fixtures."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from asyncgroup.testing.kit.contexts import ItemContext, server_of, without_traceback

if TYPE_CHECKING:
    from asyncgroup.broker import EmbeddedCluster
    from asyncgroup.pulsar_broker import EmbeddedPulsar
    from asyncgroup.testing.kit.clusters import VirtualKafka
    from asyncgroup.testing.kit.pulsar_clusters import VirtualPulsar

__all__ = ["kafka_cluster", "pulsar_cluster", "virtual_kafka", "virtual_pulsar"]


async def kafka_cluster(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedCluster]:
    """A Kafka cluster on the test's own event loop, with real sockets on free ports of 127.0.0.1."""
    from asyncgroup.testing.kit.clusters import running_cluster

    _check_loop(request)
    with without_traceback():
        async with running_cluster(ItemContext(request.node)) as cluster:
            yield cluster


async def virtual_kafka(request: pytest.FixtureRequest) -> AsyncIterator[VirtualKafka]:
    """A Kafka cluster in virtual time and in an in-memory network: minutes pass in milliseconds.

    For clients that use the event loop's clock only, such as asyncgroup's own.
    """
    from asyncgroup.testing.kit.clusters import running_virtual_cluster

    _check_loop(request)
    with without_traceback():
        async with running_virtual_cluster(ItemContext(request.node)) as cluster:
            yield cluster


async def pulsar_cluster(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedPulsar]:
    """A Pulsar on the test's own event loop, with real sockets on free ports of 127.0.0.1."""
    from asyncgroup.testing.kit.pulsar_clusters import running_pulsar

    _check_loop(request)
    with without_traceback():
        async with running_pulsar(ItemContext(request.node, "pulsar")) as pulsar:
            yield pulsar


async def virtual_pulsar(request: pytest.FixtureRequest) -> AsyncIterator[VirtualPulsar]:
    """A Pulsar in virtual time and in an in-memory network: minutes pass in milliseconds.

    For clients that use the event loop's clock only, such as asyncgroup's own.
    """
    from asyncgroup.testing.kit.pulsar_clusters import running_virtual_pulsar

    _check_loop(request)
    with without_traceback():
        async with running_virtual_pulsar(ItemContext(request.node, "pulsar")) as pulsar:
            yield pulsar


def _check_loop(request: pytest.FixtureRequest) -> None:
    """Fail the test if the cluster's event loop would not run: in a blocking test, or if the test has another loop."""
    _check_asyncio(request)
    if not request.config.pluginmanager.hasplugin("asyncio"):
        return
    import pytest_asyncio

    if not pytest_asyncio.is_async_test(request.node):
        if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
            _check_marked(request)
        elif request.node.get_closest_marker("anyio") is None:
            pytest.fail(
                f"{request.fixturename} runs on the event loop of an async test, and this test is not async; use "
                f"{server_of(request.fixturename)} for blocking tests",
                pytrace=False,
            )
        return
    marker = request.node.get_closest_marker("asyncio")
    own = None if marker is None else marker.kwargs.get("loop_scope")
    test = own or _setting(request.config, "asyncio_default_test_loop_scope")
    fixture = _setting(request.config, "asyncio_default_fixture_loop_scope")
    if test != ("function" if fixture == "fixture-scope" else fixture):
        pytest.fail(
            f"the test runs on the event loop of its {test}, the fixture on that of its {fixture}, which would not run "
            f'during the test. Set asyncio_default_fixture_loop_scope = "{test}", or set the test\'s loop_scope to '
            f'"{fixture}"; or use {server_of(request.fixturename)}, which runs on its own loop',
            pytrace=False,
        )


def _check_asyncio(request: pytest.FixtureRequest) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        is_asyncio = False
    else:
        is_asyncio = request.node.get_closest_marker("trio") is None
    if not is_asyncio:
        pytest.fail(
            f"{request.fixturename} runs on asyncio, and this test on trio; use {server_of(request.fixturename)}, which "
            "runs in a separate thread",
            pytrace=False,
        )


def _check_marked(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("anyio") is None:
        pytest.fail(
            f'{request.node.name} lacks @pytest.mark.asyncio (or asyncio_mode = "auto"): without it neither the test nor '
            f"{request.fixturename} can run",
            pytrace=False,
        )


def _setting(config: pytest.Config, name: str) -> str:
    try:
        return config.getini(name) or "function"
    except ValueError:  # older releases of pytest-asyncio do not have this option
        return "function"
