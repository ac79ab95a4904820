"""The brokers' limit for the metadata of a commit: asked once, with Kafka's default for every missing answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from asyncgroup import Cluster, ErrorCode
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import ClusterClient
from asyncgroup.offsets.commit_metadata import MAX_METADATA
from asyncgroup.offsets.metadata_limit import CONFIG_KEY, LARGEST, SMALLEST, TIMEOUT, fetch_metadata_limit
from asyncgroup.wire import messages as m
from tests.offsets.fakes import now

API = "DescribeConfigs"


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(2, host="10.0.0.1", seed=1) as cluster:
        yield cluster


async def limit_of(broker: EmbeddedCluster, check: Callable[[ClusterClient], object] | None = None) -> int:
    async with Cluster(broker.bootstrap_servers) as cluster:
        if check is not None:
            check(cluster._inner)
        return await fetch_metadata_limit(cluster._inner)


def described(value: str | None, name: str = CONFIG_KEY) -> Callable[[m.DescribeConfigsRequest], object]:
    """Return a response with this value."""
    response = m.DescribeConfigsResponse

    def make(request: m.DescribeConfigsRequest) -> m.DescribeConfigsResponse:
        (resource,) = request.resources
        config = response.DescribeConfigsResourceResult(name=name, value=value)
        result = response.DescribeConfigsResult(
            0, None, resource.resource_type, resource.resource_name, [config]
        )
        return response(results=[result])

    return make


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        ("4096", 4096),
        ("1000", 1000),
        ("20000", 20_000),
        ("0", SMALLEST),
        ("-5", SMALLEST),
        ("2147483647", LARGEST),
    ],
)
async def test_the_limit_is_that_of_the_broker_within_bounds(
    broker: EmbeddedCluster, value: str, limit: int
) -> None:
    asked: list[m.DescribeConfigsRequest] = []

    def answer(request: m.DescribeConfigsRequest) -> object:
        asked.append(request)
        return described(value)(request)

    broker.faults.on(API).answer(answer)
    assert await limit_of(broker) == limit
    (request,) = asked
    (resource,) = request.resources
    assert (resource.resource_type, resource.configuration_keys) == (4, [CONFIG_KEY])
    assert resource.resource_name in ("1", "2")
    assert len(broker.history.of(API)) == 1


@pytest.mark.parametrize(
    "answer",
    [
        described(None),
        described(""),
        described("many"),
        described("4097", "offset.metadata.max"),
        lambda _: m.DescribeConfigsResponse(results=[]),
    ],
)
async def test_a_broker_that_does_not_describe_it_has_the_default(
    broker: EmbeddedCluster, answer: Callable[[m.DescribeConfigsRequest], object]
) -> None:
    broker.faults.on(API).answer(answer)
    assert await limit_of(broker) == MAX_METADATA


@pytest.mark.parametrize(
    "code", [ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION]
)
async def test_an_error_means_the_default(broker: EmbeddedCluster, code: ErrorCode) -> None:
    broker.faults.on(API).error(code)
    assert await limit_of(broker) == MAX_METADATA
    assert len(broker.history.of(API)) == 1, "it is not repeated"


async def test_the_embedded_broker_answers_or_has_the_default(broker: EmbeddedCluster) -> None:
    assert await limit_of(broker) == MAX_METADATA


async def test_a_silent_broker_is_not_waited_for(broker: EmbeddedCluster) -> None:
    broker.faults.on(API).hold()
    async with Cluster(broker.bootstrap_servers) as cluster:
        began = now()
        assert await fetch_metadata_limit(cluster._inner) == MAX_METADATA
        assert now() - began == pytest.approx(TIMEOUT, abs=0.1)


async def test_a_lost_connection_means_the_default(broker: EmbeddedCluster) -> None:
    broker.faults.on(API).disconnect()
    assert await limit_of(broker) == MAX_METADATA
