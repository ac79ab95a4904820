"""The envelope in a commit's metadata: user text, topic id, and strings that must not be taken for an envelope."""

from __future__ import annotations

import zlib
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from asyncgroup.model import TopicPartition
from asyncgroup.offsets import CommittedOffset
from asyncgroup.offsets.commit_metadata import MAX_METADATA, CommitMetadata, decode_metadata, encode_metadata
from asyncgroup.offsets.fetch_offsets import fetch_offsets, fetch_offsets_and_ids
from asyncgroup.spark.bridge.commits import LastBatch, from_metadata, to_metadata
from asyncgroup.wire import messages as m
from tests.offsets.fakes import FakeCluster
from tests.offsets.scene import A0, Scene

TP = TopicPartition("orders", 3)
ID = UUID(int=0xFEED_0000_0000_0000_0000_0000_0000_0001)

ids = st.uuids().filter(lambda found: found != m.NO_UUID)
offsets = st.integers(0, 2**63 - 1)


@given(st.text(max_size=200), ids, offsets)
def test_encoded_metadata_decodes_to_the_same(text: str, topic_id: UUID, offset: int) -> None:
    raw = encode_metadata(TP, offset, CommitMetadata(text, topic_id))
    assert raw.startswith("asyncgroup/1:")
    assert decode_metadata(TP, offset, raw) == CommitMetadata(text, topic_id)


@given(
    st.text(max_size=100)
    | st.from_regex(r"asyncgroup/[0-9]:[0-9a-f]{8}:(id=[\w-]{22};)?(t=.*)?", fullmatch=True)
)
def test_a_users_text_is_never_taken_for_an_envelope(text: str) -> None:
    assert decode_metadata(TP, 7, text) == CommitMetadata(text, m.NO_UUID)
    assert encode_metadata(TP, 7, CommitMetadata(text)) == text
    assert decode_metadata(TP, 7, encode_metadata(TP, 7, CommitMetadata(text, ID))) == CommitMetadata(
        text, ID
    )


def test_an_envelope_of_another_partition_or_offset_is_text() -> None:
    raw = encode_metadata(TP, 7, CommitMetadata("mine", ID))
    for tp, offset in ((TP, 8), (TopicPartition("orders", 4), 7), (TopicPartition("order", 3), 7)):
        assert decode_metadata(tp, offset, raw) == CommitMetadata(raw, m.NO_UUID)
    assert decode_metadata(TP, 7, raw[:-1]).topic_id == m.NO_UUID


def test_the_format_does_not_change() -> None:
    """Envelopes that are stored in groups must stay readable."""
    raw = "asyncgroup/1:df5ac0f0:id=_u0AAAAAAAAAAAAAAAAAAQ;t=done; id=none;"
    assert encode_metadata(TP, 7, CommitMetadata("done; id=none;", ID)) == raw
    assert decode_metadata(TP, 7, raw) == CommitMetadata("done; id=none;", ID)


def sealed(body: str) -> str:
    """Return an envelope for offset 7 with this body."""
    return f"asyncgroup/1:{zlib.crc32(f'orders/3@7:{body}'.encode()):08x}:{body}"


def test_unknown_fields_are_skipped() -> None:
    raw = sealed("window=abc=;id=_u0AAAAAAAAAAAAAAAAAAQ;new=;t=text")
    assert decode_metadata(TP, 7, raw) == CommitMetadata("text", ID)


def test_the_flag_is_a_field_that_older_versions_skip() -> None:
    for content in (
        CommitMetadata(is_open=True),
        CommitMetadata("o=1;", is_open=True),
        CommitMetadata("text", ID, "ab", is_open=True, end_epoch=7),
    ):
        raw = encode_metadata(TP, 7, content)
        assert "o=1;" in raw
        assert decode_metadata(TP, 7, raw) == content
    assert encode_metadata(TP, 7, CommitMetadata(is_open=True)) == sealed("o=1;")
    assert encode_metadata(TP, 7, CommitMetadata("t", is_open=True, window="ab", end_epoch=3)) == sealed(
        "o=1;e=3;w=ab;t=t"
    )
    assert encode_metadata(TP, 7, CommitMetadata("o=1;")) == "o=1;"
    assert decode_metadata(TP, 7, "o=1;") == CommitMetadata("o=1;")


@pytest.mark.parametrize("body", ["o=0;", "o=;", "o=2;", "e=x;", "e=-1;", "e=;", "e=²;", "id=?;"])
def test_fields_with_other_values_count_as_absent(body: str) -> None:
    assert decode_metadata(TP, 7, sealed(body)) == CommitMetadata()


def test_the_brokers_size_limit_is_kept() -> None:
    room = MAX_METADATA - len(encode_metadata(TP, 7, CommitMetadata("x", ID))) + 1
    for text in ("x" * room, "é" * (room // 2)):
        assert len(encode_metadata(TP, 7, CommitMetadata(text, ID)).encode()) <= MAX_METADATA
        assert decode_metadata(TP, 7, encode_metadata(TP, 7, CommitMetadata(text, ID))) == CommitMetadata(
            text, ID
        )
    too_long = "x" * (room + 1)
    assert encode_metadata(TP, 7, CommitMetadata(too_long, ID)) == too_long


def test_the_bridges_metadata_stays_readable() -> None:
    plain = "foreachBatch/1:12@3400"
    assert from_metadata(decode_metadata(TP, 3400, plain).text) == LastBatch(12, 3400)
    sealed = encode_metadata(TP, 3400, CommitMetadata(to_metadata(12, 3400), ID))
    assert from_metadata(decode_metadata(TP, 3400, sealed).text) == LastBatch(12, 3400)


# --- commits and fetches ----------------------------------------------------------------------------------------------


async def test_a_committer_sends_topic_ids_only_if_configured() -> None:
    for with_topic_ids in (False, True):
        scene = Scene(with_topic_ids=with_topic_ids)
        scene.answer(0)
        scene.cluster.topic("a", ID)
        scene.manager.drop(A0)
        scene.manager.manage(A0, 10).mark_offset(11, "mine")
        await scene.manager.commit()
        (sent,) = scene.sent
        raw = encode_metadata(A0, 11, CommitMetadata("mine", ID)) if with_topic_ids else "mine"
        assert {metadata for _, metadata in sent.values()} == {raw}
        assert scene.commits == [({A0: CommittedOffset(11, "mine")}, None)]
        assert scene.manager.dirty == []


async def test_fetched_metadata_is_the_users_text() -> None:
    cluster = FakeCluster()
    raw = encode_metadata(A0, 11, CommitMetadata("mine", ID))

    async def answer(request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
        response = m.OffsetFetchResponse
        part = response.OffsetFetchResponsePartitions(0, 11, -1, raw, 0)
        topic = response.OffsetFetchResponseTopics(name="a", partitions=[part])
        return response(groups=[response.OffsetFetchResponseGroup("g", [topic], 0)])

    cluster.coordinators.script = answer
    assert await fetch_offsets(cluster, "g", [A0], lane="group") == {A0: (11, "mine", -1)}  # type: ignore[arg-type]
    found = await fetch_offsets_and_ids(cluster, "g", [A0], lane="group")  # type: ignore[arg-type]
    assert found == {A0: ((11, "mine", -1), ID)}
