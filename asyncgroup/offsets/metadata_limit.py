"""How many bytes the brokers allow for the metadata of a commit."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.errors import AsyncGroupError, BrokerError
from asyncgroup.offsets.commit_metadata import MAX_METADATA
from asyncgroup.wire import messages as m
from asyncgroup.wire.compiling import MAX_STRING

__all__ = ["CONFIG_KEY", "LARGEST", "SMALLEST", "TIMEOUT", "fetch_metadata_limit"]

_log = logging.getLogger("asyncgroup.offsets")

BROKER_RESOURCE: Final = 4
"""The type of a broker in DescribeConfigs (`ConfigResource.Type.BROKER` in Kafka)."""

CONFIG_KEY: Final = "offset.metadata.max.bytes"
"""The broker's setting that limits the metadata of a commit."""

TIMEOUT: Final = 5.0
"""Seconds to wait for the response; without one the default applies."""

SMALLEST: Final = 64
"""The smallest limit in bytes: less has no room for an envelope."""

LARGEST: Final = MAX_STRING
"""The largest limit in bytes: the longest string of Kafka's protocol."""


async def fetch_metadata_limit(cluster: ClusterClient) -> int:
    """Return `offset.metadata.max.bytes` of a broker, with one DescribeConfigs request.

    `MAX_METADATA`, Kafka's default, if the value is unknown: the broker does not support the request, refuses it for lack of
    authorization, or does not answer within `TIMEOUT` seconds. All brokers of a cluster should have the same value; a commit
    that another one refuses as too large is made smaller (`WindowMarks.shrink`). Raises nothing.
    """
    try:
        async with asyncio.timeout(TIMEOUT):
            limit = await _ask(cluster)
    except (AsyncGroupError, ValueError, TimeoutError) as error:
        _log.debug("%s is unknown, %d is assumed: %s", CONFIG_KEY, MAX_METADATA, error)
        return MAX_METADATA
    return MAX_METADATA if limit is None else min(max(limit, SMALLEST), LARGEST)


async def _ask(cluster: ClusterClient) -> int | None:
    """Return the value of one broker; None if it does not describe it. Raises AsyncGroupError, ValueError."""
    nodes = sorted(cluster.view.brokers)
    if not nodes:
        return None
    node_id = cluster.random.choice(nodes)
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name=str(node_id), configuration_keys=[CONFIG_KEY]
    )
    request = m.DescribeConfigsRequest(resources=[resource])
    # a broker describes its own static configuration only, so the request goes to the one that it names
    response = await cluster.network.request(node_id, request, timeout=TIMEOUT)
    for result in response.results:
        if result.error_code:
            raise BrokerError(result.error_code, f"configuration of broker {node_id}", result.error_message)
        for config in result.configs:
            if config.name == CONFIG_KEY and config.value:
                return int(config.value)
    return None
