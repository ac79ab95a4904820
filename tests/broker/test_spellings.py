"""What an embedded cluster takes: sequences where tuples are, one name where several are, seconds and no timedelta."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from asyncgroup.broker import ClusterOptions, EmbeddedCluster, ListenerSecurity
from asyncgroup.errors import ConfigError
from asyncgroup.model import TopicPartition

TEN = timedelta(seconds=10)


@pytest.mark.parametrize("given", ["PLAIN", ["PLAIN"], ("PLAIN",)])
def test_mechanisms_are_one_or_several(given: Any) -> None:
    security = ListenerSecurity(users={"ann": "secret"}, mechanisms=given)
    assert security.mechanisms == ("PLAIN",)
    assert hash(security) == hash(ListenerSecurity(users={"ann": "secret"}, mechanisms=("PLAIN",)))


async def test_a_record_and_an_offset_by_partition() -> None:
    async with EmbeddedCluster(
        topics={"orders": {"records": [["ann", "a lamp"], ("bob", b"a book")]}}
    ) as cluster:
        cluster.produce("orders", ["eve", None])
        assert [(record.key, record.value) for record in cluster.records("orders")] == [
            (b"ann", b"a lamp"),
            (b"bob", b"a book"),
            (b"eve", None),
        ]
        by_partition = {TopicPartition("orders", 0): 2}
        cluster.commit("billing", by_partition)
        assert cluster.group("billing").offsets[TopicPartition("orders", 0)].offset == 2


async def test_the_errors_of_timedeltas_name_the_seconds() -> None:
    cluster = EmbeddedCluster()
    for call, key in (
        (lambda: cluster.slow_node(1, TEN), "delay"),  # type: ignore[arg-type]
        (lambda: cluster.faults.on("Fetch").optional().delay(TEN), "seconds"),  # type: ignore[arg-type]
        (lambda: ClusterOptions(offsets_append_delay=TEN), "offsets_append_delay"),  # type: ignore[arg-type]
        (lambda: ListenerSecurity(users={"a": "b"}, max_reauth=TEN), "max_reauth"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match=rf"^{key}=.*; durations are seconds: 10\.0\?$"):
            call()
