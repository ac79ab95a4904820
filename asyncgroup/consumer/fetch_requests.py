"""Send the requests that a `FetchScheduler` plans, and give it the answers: thin coroutines without decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.broker_partitions import BrokerPartitions
from asyncgroup.consumer.fetch_outcome import EpochEndOffset
from asyncgroup.consumer.fetch_plan import FetchPlan
from asyncgroup.consumer.fetch_scheduler import FetchScheduler, Validation
from asyncgroup.consumer.list_offsets import Isolation, ListOffsetsResult, list_offsets_once
from asyncgroup.consumer.offset_resets import OffsetLookup
from asyncgroup.consumer.validation import PositionCheck, build_epoch_request, epoch_end_offsets
from asyncgroup.errors import AsyncGroupError, UnsupportedVersionError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["look_up_offsets", "send_epoch_request", "send_fetch", "validate_positions"]


async def send_fetch(
    cluster: ClusterClient,
    broker: BrokerPartitions,
    plan: FetchPlan,
    config: ConsumerConfig,
    *,
    lane: str,
    timeout: float,
) -> m.FetchResponse:
    """Send a planned fetch on a lane. Raises TransportError, ProtocolError."""
    return await cluster.request_versioned(
        plan.node_id,
        m.FetchRequest,
        lambda version: broker.build_request(plan, config, version),
        lane=lane,
        timeout=timeout,
        highest=plan.highest_version,
    )


async def send_epoch_request(
    cluster: ClusterClient, node_id: int, checks: Iterable[PositionCheck]
) -> dict[TopicPartition, tuple[int, EpochEndOffset]]:
    """Have a leader validate positions; return each partition's error code and end offset.

    Raises UnsupportedVersionError (brokers before KIP-320), TransportError, ProtocolError.
    """
    response = await cluster.request_versioned(
        node_id, m.OffsetForLeaderEpochRequest, lambda version: build_epoch_request(checks, version)
    )
    return epoch_end_offsets(response)


async def validate_positions(
    cluster: ClusterClient,
    scheduler: FetchScheduler,
    broker: BrokerPartitions,
    validation: Validation,
    time: Callable[[], float],
) -> None:
    """Have a broker validate positions."""
    try:
        ends = await send_epoch_request(cluster, broker.node_id, validation.values())
    except UnsupportedVersionError:
        scheduler.skip_validation(validation)
    except AsyncGroupError as error:
        scheduler.validation_failed(broker, validation, error, time())
    else:
        scheduler.apply_validation(broker, validation, ends, time())


async def look_up_offsets(
    cluster: ClusterClient,
    scheduler: FetchScheduler,
    lookup: OffsetLookup,
    isolation: Isolation,
    time: Callable[[], float],
) -> list[ListOffsetsResult]:
    """Send the requests of a lookup concurrently; return the answers, which the scheduler has applied."""
    requests = (list_offsets_once(cluster, wanted, isolation) for wanted in lookup.requests)
    answers = await asyncio.gather(*requests)
    scheduler.resets.apply(lookup, answers, time())
    return answers
