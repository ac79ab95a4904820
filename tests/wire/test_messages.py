"""The generated message classes from the user's point of view."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Message, Request
from asyncgroup.wire.schema import message_spec
from asyncgroup.wire.tables import TABLES

Topic = m.FetchRequest.FetchTopic


def test_equality_is_by_value_and_class():
    one = m.FetchRequest(topics=[Topic(topic="t")])
    assert one == m.FetchRequest(topics=[Topic(topic="t")])
    assert one != m.FetchRequest(topics=[Topic(topic="u")])
    assert m.HeartbeatResponse() != m.LeaveGroupResponse()
    assert one != "something else"


def test_messages_are_not_hashable():
    with pytest.raises(TypeError, match="unhashable"):
        hash(m.HeartbeatRequest())


def test_the_repr_shows_every_field_but_no_payload():
    text = repr(m.ProduceRequest.PartitionProduceData(index=4, records=b"x" * 5000))
    assert text == "ProduceRequest.PartitionProduceData(index=4, records=<5000 bytes>)"
    assert repr(m.HeartbeatResponse(error_code=5)) == "HeartbeatResponse(throttle_time_ms=0, error_code=5)"


def test_the_repr_shows_no_secret_configs():
    for request in (m.IncrementalAlterConfigsRequest, m.AlterConfigsRequest):
        for name in (
            "listener.name.x.plain.sasl.jaas.config",
            "ssl.key.password",
            "ssl.keystore.key",
            "delegation.token.master.key",
            "delegation.master.key",
            "my.token",
            "sasl.credentials",
            "plugin.api.key",
            "plugin.ApiKey",
            "plugin.access_key",
            "plugin.private.key",
            "plugin.pwd",
        ):
            config = request.AlterableConfig(name=name, value="do not show")
            assert "do not show" not in repr(request([request.AlterConfigsResource(4, "1", [config])]))
        for name in ("log.retention.ms", "sasl.enabled.mechanisms", "cleanup.policy"):
            assert "'5000'" in repr(request.AlterableConfig(name=name, value="5000"))


def test_the_repr_shows_no_passwords():
    """SASL/PLAIN sends the password itself, and the embedded broker logs a request whose handler fails."""
    text = repr(m.SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"))
    assert text == "SaslAuthenticateRequest(auth_bytes=<13 bytes>)"
    upsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(salted_password=b"secret")
    assert "secret" not in repr(m.AlterUserScramCredentialsRequest(upsertions=[upsertion]))


def test_defaults_are_not_shared():
    one, other = m.FetchRequest(), m.FetchRequest()
    one.topics.append(Topic())
    one.replica_state.replica_id = 7
    assert other.topics == []
    assert other.replica_state.replica_id == -1


def test_defaults_match_kafkas():
    request = m.FetchRequest()
    assert (request.max_bytes, request.session_epoch, request.cluster_id) == (0x7FFFFFFF, -1, None)
    assert m.MetadataRequest().allow_auto_topic_creation is True
    assert m.ConsumerGroupHeartbeatRequest().subscribed_topic_names is None


def test_an_unknown_field_is_an_error():
    with pytest.raises(TypeError):
        m.FetchRequest(topic="t")
    with pytest.raises(AttributeError):
        m.FetchRequest().topic = "t"


@pytest.mark.parametrize("name", TABLES)
def test_classes_match_their_specification(name):
    cls, spec = getattr(m, name), message_spec(name)
    assert (cls.NAME, cls.API_KEY, cls.__name__) == (name, spec.api_key, name)
    assert issubclass(cls, Request if spec.kind == "request" else Message)
    assert cls.__slots__ == tuple(field.attribute for field in spec.top.fields)
    assert not hasattr(cls(), "__dict__")
    assert cls.__doc__ == f"Kafka's {name}, versions {spec.versions}."
    for struct in spec.structs.values():
        assert getattr(cls, struct.name).__slots__ == tuple(field.attribute for field in struct.fields)


REPOSITORY = Path(__file__).parents[2]
USER_CODE = """\
from typing import TypeVar, assert_type
from uuid import UUID

from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode, decode_from, decode_response
from asyncgroup.wire.message import Message, Request
from asyncgroup.wire.codec import decode_versioned

R = TypeVar("R", bound=Message)


async def send(request: Request[R]) -> R:
    raise NotImplementedError


async def use(data: bytes) -> None:
    request = m.FetchRequest(
        topics=[m.FetchRequest.FetchTopic(topic="t", partitions=[m.FetchRequest.FetchPartition(partition=1)])]
    )
    response = await send(request)
    assert_type(response, m.FetchResponse)
    partition = response.responses[0].partitions[0]
    assert_type(partition, m.FetchResponse.PartitionData)
    assert_type(partition.records, bytes | memoryview | None)
    assert_type(partition.current_leader, m.FetchResponse.LeaderIdAndEpoch)
    assert_type(partition.aborted_transactions, list[m.FetchResponse.AbortedTransaction] | None)
    assert_type(request.topics[0].topic_id, UUID)
    assert_type(await send(m.HeartbeatRequest()), m.HeartbeatResponse)
    assert_type(decode(m.HeartbeatResponse, 0, data), m.HeartbeatResponse)
    assert_type(decode_from(m.HeartbeatResponse, 0, data), tuple[m.HeartbeatResponse, int])
    assert_type(decode_response(m.JoinGroupResponse, 0, data), m.JoinGroupResponse)
    assert_type(decode_versioned(m.ConsumerProtocolAssignment, data), m.ConsumerProtocolAssignment)
    assert_type(m.JoinGroupResponse().protocol_name, str | None)
    assert_type(m.ConsumerGroupHeartbeatResponse().assignment, m.ConsumerGroupHeartbeatResponse.Assignment | None)
    m.FetchRequest(topics=[m.FetchResponse.PartitionData()])  # expected: list-item
    m.FetchRequest(rack_id=None)  # expected: arg-type
    m.FetchRequest(no_such_field=1)  # expected: call-arg
    request.no_such_field  # expected: attr-defined
    request.rack_id = 5  # expected: assignment
    await send(m.FetchResponse())  # expected: arg-type
"""


@pytest.mark.full
def test_types_for_user_code():
    """mypy reports an error for each line marked as expected, and for no other line."""
    pytest.importorskip("mypy", reason="mypy is part of the extra `dev`, not of `test`")
    how = ["--strict", "--no-color-output", "--config-file=", "--follow-imports=silent"]
    command = [sys.executable, "-m", "mypy", *how, "--cache-dir=.mypy_cache/users", "-c", USER_CODE]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    found = set(re.findall(r"^<string>:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE))
    expected = {
        (str(number), line.rsplit("expected: ", 1)[1])
        for number, line in enumerate(USER_CODE.splitlines(), 1)
        if "expected: " in line
    }
    assert found == expected, done.stdout + done.stderr
