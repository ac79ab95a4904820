"""A warning if brokers may delete copies in the retry topic because of their age."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.errors import AsyncGroupError, BrokerError
from asyncgroup.wire import messages as m

__all__ = ["warn_of_retention"]

_log = logging.getLogger("asyncgroup.workqueue")

TOPIC_RESOURCE: Final = 2
"""The type of a topic in DescribeConfigs (`ConfigResource.Type.TOPIC` in Kafka)."""

TIMEOUT: Final = 5.0
"""Seconds to wait for the response."""

RETENTION: Final = "retention.ms"
POLICY: Final = "cleanup.policy"


async def warn_of_retention(cluster: ClusterClient, group_id: str, topic: str) -> None:
    """Log a warning if a retry topic has a finite `retention.ms`: the originals of its copies are acknowledged.

    Sends one DescribeConfigs request. Nothing is logged if the brokers do not say it. Raises nothing.
    """
    try:
        async with asyncio.timeout(TIMEOUT):
            configs = await _describe(cluster, topic)
        retention = int(configs.get(RETENTION) or -1)
    except (AsyncGroupError, ValueError, TimeoutError) as error:
        _log.debug("group %s: %s of topic %r is unknown: %s", group_id, RETENTION, topic, error)
        return
    if retention >= 0 and "delete" in (configs.get(POLICY) or "delete"):
        _log.warning(
            "group %s: retry topic %r has %s=%d: brokers delete copies by the timestamps of their originals, which are "
            "acknowledged; set it to -1",
            group_id,
            topic,
            RETENTION,
            retention,
        )


async def _describe(cluster: ClusterClient, topic: str) -> dict[str, str | None]:
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=[RETENTION, POLICY]
    )
    request = m.DescribeConfigsRequest(resources=[resource])
    response = await cluster.network.request_any(m.DescribeConfigsRequest, lambda _: request)
    configs: dict[str, str | None] = {}
    for result in response.results:
        if result.error_code:
            raise BrokerError(result.error_code, f"configuration of topic {topic!r}", result.error_message)
        configs |= {config.name: config.value for config in result.configs}
    return configs
