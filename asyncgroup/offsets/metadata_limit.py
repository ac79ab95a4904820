"""How many bytes the brokers allow for the metadata of a commit."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.configs import BROKER, ConfigResource, describe_configs
from asyncgroup.errors import AsyncGroupError
from asyncgroup.offsets.commit_metadata import MAX_METADATA
from asyncgroup.wire.compiling import MAX_STRING

__all__ = ["CONFIG_KEY", "LARGEST", "SMALLEST", "TIMEOUT", "fetch_metadata_limit"]

_log = logging.getLogger("asyncgroup.offsets")

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
    broker = ConfigResource(BROKER, str(cluster.random.choice(nodes)))
    results = await describe_configs(cluster, [broker], [CONFIG_KEY], timeout=TIMEOUT)
    value = results.require()[broker].get(CONFIG_KEY)
    return int(value) if value else None
