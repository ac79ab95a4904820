"""The configuration of a group at the brokers, by DescribeConfigs (KIP-848)."""

from __future__ import annotations

from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.configs import GROUP, ConfigResource, describe_configs
from asyncgroup.cluster.requests.results import IncompleteResponse

__all__ = ["find_session_timeout"]

SESSION_TIMEOUT_KEY: Final = "consumer.session.timeout.ms"


async def find_session_timeout(cluster: ClusterClient, group_id: str) -> float | None:
    """Return the group's session timeout in seconds; None if the broker does not describe it.

    Makes no retries. Raises BrokerError, for example without authorization, TransportError, ProtocolError.
    """
    group = ConfigResource(GROUP, group_id)
    try:
        configs = (await describe_configs(cluster, [group], [SESSION_TIMEOUT_KEY])).require()[group]
        milliseconds = int(configs.get(SESSION_TIMEOUT_KEY) or 0)
    except (IncompleteResponse, ValueError):
        return None
    return milliseconds / 1000 if milliseconds > 0 else None
