"""Build the requests of the stories for the version in which the scene sends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import encode_versioned
from tests.interop.parity.scene import Scene

__all__ = [
    "ASSIGNED",
    "NO_SUCH_ID",
    "RANGE",
    "commit",
    "commit_request",
    "fetch",
    "heartbeat",
    "join",
    "joined",
    "leave",
    "list_offsets",
    "offset_fetch",
    "produce",
    "sync",
]

NO_SUCH_ID: Final = UUID(int=0xDEADBEEF << 64 | 0x4000 << 64 | 7)
"""A topic id that no broker generates."""

SUBSCRIBED: Final = encode_versioned(m.ConsumerProtocolSubscription(topics=["parity"]), 0)
ASSIGNED: Final = encode_versioned(
    m.ConsumerProtocolAssignment([m.ConsumerProtocolAssignment.TopicPartition("parity", [0])]), 0
)
RANGE: Final = (("range", SUBSCRIBED),)

Protocols = Sequence[tuple[str, bytes]]


# -- groups ----------------------------------------------------------------------------------------------------


def join(
    scene: Scene,
    group: str,
    member_id: str = "",
    *,
    instance: str | None = None,
    protocols: Protocols = RANGE,
    **fields: Any,
) -> m.JoinGroupRequest:
    """JoinGroup with a session timeout of 10 s."""
    version, cls = scene.version("JoinGroup"), m.JoinGroupRequest
    if version >= 1:
        fields.setdefault("rebalance_timeout_ms", 30_000)
    if version >= 5:
        fields["group_instance_id"] = instance
    values: dict[str, Any] = {"session_timeout_ms": 10_000, "protocol_type": "consumer", **fields}
    wanted = [cls.JoinGroupRequestProtocol(*protocol) for protocol in protocols]
    return cls(group, member_id=member_id, protocols=wanted, **values)


async def joined(
    scene: Scene, label: str, group: str, *, via: str = "main", **fields: Any
) -> m.JoinGroupResponse:
    """Join as a new member; from version 4 on in two steps, whose responses are both kept (KIP-394)."""
    answer = await scene.ask(label, join(scene, group, **fields), via=via)
    if answer.error_code == 79:
        answer = await scene.ask(
            f"{label}, with an id", join(scene, group, answer.member_id, **fields), via=via
        )
    assert isinstance(answer, m.JoinGroupResponse)
    return answer


def sync(
    scene: Scene,
    group: str,
    generation: int,
    member_id: str,
    plan: Mapping[str, bytes] | None = None,
    *,
    instance: str | None = None,
    protocol_type: str | None = "consumer",
    protocol: str | None = "range",
) -> m.SyncGroupRequest:
    """SyncGroup; `plan` are assignments by member id."""
    version, cls = scene.version("SyncGroup"), m.SyncGroupRequest
    more: dict[str, Any] = {}
    if version >= 3:
        more["group_instance_id"] = instance
    if version >= 5:
        more |= {"protocol_type": protocol_type, "protocol_name": protocol}
    assignments = [cls.SyncGroupRequestAssignment(*pair) for pair in (plan or {}).items()]
    return cls(group, generation, member_id, assignments=assignments, **more)


def heartbeat(
    scene: Scene, group: str, generation: int, member_id: str, instance: str | None = None
) -> m.HeartbeatRequest:
    """Heartbeat; versions below 3 have no group instance id."""
    more = {"group_instance_id": instance} if scene.version("Heartbeat") >= 3 else {}
    return m.HeartbeatRequest(group, generation, member_id, **more)


def leave(scene: Scene, group: str, *members: tuple[str, str | None]) -> m.LeaveGroupRequest:
    """LeaveGroup of (member id, group instance id) pairs; versions below 3 contain the first one only."""
    if scene.version("LeaveGroup") < 3:
        return m.LeaveGroupRequest(group, members[0][0])
    cls = m.LeaveGroupRequest.MemberIdentity
    return m.LeaveGroupRequest(group, members=[cls(*member) for member in members])


# -- offsets ---------------------------------------------------------------------------------------------------

Committed = m.OffsetCommitRequest.OffsetCommitRequestPartition


def commit(
    scene: Scene, group: str, offsets: Mapping[tuple[str, int], int], **fields: Any
) -> m.OffsetCommitRequest:
    """OffsetCommit without metadata."""
    parts: dict[str, list[Committed]] = {}
    for (topic, partition), offset in offsets.items():
        parts.setdefault(topic, []).append(Committed(partition, offset))
    return commit_request(scene, group, parts, **fields)


def commit_request(
    scene: Scene,
    group: str,
    parts: Mapping[str, list[Committed]],
    *,
    generation: int = -1,
    member_id: str = "",
    instance: str | None = None,
    **fields: Any,
) -> m.OffsetCommitRequest:
    """OffsetCommit, by topic ids where the version has them."""
    version, cls = scene.version("OffsetCommit"), m.OffsetCommitRequest
    topics = [
        cls.OffsetCommitRequestTopic(**_place(scene, name, version >= 10), partitions=p)
        for name, p in parts.items()
    ]
    more: dict[str, Any] = {"group_instance_id": instance} if version >= 7 else {}
    return cls(
        group, generation_id_or_member_epoch=generation, member_id=member_id, topics=topics, **more, **fields
    )


def _place(scene: Scene, topic: str, by_id: bool, name: str = "name") -> dict[str, Any]:
    return {"topic_id": scene.topic_ids.get(topic, NO_SUCH_ID)} if by_id else {name: topic}


def offset_fetch(
    scene: Scene, group: str, topics: Mapping[str, list[int]] | None, *, require_stable: bool = False
) -> m.OffsetFetchRequest:
    """OffsetFetch of one group; None stands for all topics (versions 2 and up)."""
    version, cls = scene.version("OffsetFetch"), m.OffsetFetchRequest
    more: dict[str, Any] = {"require_stable": require_stable} if version >= 7 else {}
    if version < 8:
        old = None if topics is None else [cls.OffsetFetchRequestTopic(*pair) for pair in topics.items()]
        return cls(group, topics=old, **more)
    new = None
    if topics is not None:
        new = [
            cls.OffsetFetchRequestTopics(**_place(scene, name, version >= 10), partition_indexes=indexes)
            for name, indexes in topics.items()
        ]
    return cls(groups=[cls.OffsetFetchRequestGroup(group, topics=new)], **more)


# -- records ---------------------------------------------------------------------------------------------------


def produce(
    scene: Scene,
    topic: str,
    batches: Mapping[int, bytes],
    *,
    acks: int = -1,
    transactional_id: str | None = None,
    version: int | None = None,
) -> m.ProduceRequest:
    """Produce to partitions of one topic, by its id where the version has ids."""
    cls, chosen = m.ProduceRequest, scene.version("Produce") if version is None else version
    data = [cls.PartitionProduceData(index, batch) for index, batch in batches.items()]
    named = cls.TopicProduceData(**_place(scene, topic, chosen >= 13), partition_data=data)
    return cls(transactional_id, acks, 10_000, [named])


def fetch(
    scene: Scene,
    topic: str,
    offsets: Mapping[int, int],
    *,
    epoch: int = -1,
    last_epoch: int = -1,
    limit: int = 1 << 20,
    forgotten: Sequence[int] = (),
    **fields: Any,
) -> m.FetchRequest:
    """Fetch from partitions of one topic, without waiting."""
    version, cls = scene.version("Fetch"), m.FetchRequest
    more: dict[str, Any] = {"partition_max_bytes": limit}
    if version >= 9:
        more["current_leader_epoch"] = epoch
    if version >= 12:
        more["last_fetched_epoch"] = last_epoch
    wanted = [cls.FetchPartition(index, fetch_offset=offset, **more) for index, offset in offsets.items()]
    place = _place(scene, topic, version >= 13, "topic")
    topics = [cls.FetchTopic(**place, partitions=wanted)] if wanted else []
    if forgotten:
        fields["forgotten_topics_data"] = [cls.ForgottenTopic(**place, partitions=list(forgotten))]
    return cls(topics=topics, **{"max_wait_ms": 0, "min_bytes": 0, **fields})


def list_offsets(
    scene: Scene, topic: str, timestamps: Sequence[tuple[int, int]], *, epoch: int = -1, isolation: int = 0
) -> m.ListOffsetsRequest:
    """ListOffsets of (partition, timestamp) pairs of one topic."""
    version, cls = scene.version("ListOffsets"), m.ListOffsetsRequest
    epochs: dict[str, Any] = {"current_leader_epoch": epoch} if version >= 4 else {}
    more = {"isolation_level": isolation} if version >= 2 else {}
    parts = [
        cls.ListOffsetsPartition(index, timestamp=timestamp, **epochs) for index, timestamp in timestamps
    ]
    return cls(replica_id=-1, topics=[cls.ListOffsetsTopic(topic, parts)], **more)
