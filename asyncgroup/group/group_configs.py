"""The configuration of a group at the brokers, by DescribeConfigs (KIP-848)."""

from __future__ import annotations

from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.errors import BrokerError
from asyncgroup.wire import messages as m

__all__ = ["find_session_timeout"]

GROUP_RESOURCE: Final = 32
"""The type of a group in DescribeConfigs (`ConfigResource.Type.GROUP` in Kafka)."""

SESSION_TIMEOUT_KEY: Final = "consumer.session.timeout.ms"


async def find_session_timeout(cluster: ClusterClient, group_id: str) -> float | None:
    """Return the group's session timeout in seconds; None if the broker does not describe it.

    Raises BrokerError, for example without authorization, TransportError, ProtocolError.
    """
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group_id, configuration_keys=[SESSION_TIMEOUT_KEY]
    )
    request = m.DescribeConfigsRequest(resources=[resource])
    # not as a request to the coordinator: a failure would make it unknown
    response = await cluster.network.request(await cluster.coordinators.locate(group_id), request)
    for result in response.results:
        if result.error_code:
            what = f"configuration of group {group_id!r}"
            raise BrokerError(result.error_code, what, result.error_message)
    values = [
        config.value
        for result in response.results
        for config in result.configs
        if config.name == SESSION_TIMEOUT_KEY
    ]
    try:
        milliseconds = int(values[0] or 0) if values else 0
    except ValueError:
        return None
    return milliseconds / 1000 if milliseconds > 0 else None
