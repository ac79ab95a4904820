"""A broker that sends anything: a connection ends with an error, or goes on; no other exception leaves it."""

from __future__ import annotations

import asyncio
import random

import pytest

from asyncgroup.errors import ConnectionLost, ProtocolError
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.frames import encode_frame, encode_send
from tests.pulsar.scripted import ScriptedPulsar
from tests.pulsar.support import RecordingListener, connected, last_id

MESSAGE_ID = c.MessageIdData(ledger_id=1, entry_id=2, partition=3, batch_index=4, ack_set=[5, -6])
COMMANDS: tuple[c.Command, ...] = (
    c.CommandConnected(server_version="again", max_message_size=1, feature_flags=c.FeatureFlags()),
    c.CommandSuccess(request_id=0),
    c.CommandError(request_id=0, error=3, message="refused"),
    c.CommandProducerSuccess(request_id=0, producer_name="p", producer_ready=False),
    c.CommandSendReceipt(producer_id=1, sequence_id=1, message_id=MESSAGE_ID),
    c.CommandSendError(producer_id=1, sequence_id=1, error=1, message="text"),
    c.CommandLookupTopicResponse(request_id=0, broker_service_url="pulsar://a", response=1),
    c.CommandCloseProducer(producer_id=1, request_id=0, assigned_broker_service_url="pulsar://a"),
    c.CommandCloseConsumer(consumer_id=1, request_id=0),
    c.CommandActiveConsumerChange(consumer_id=1, is_active=True),
    c.CommandReachedEndOfTopic(consumer_id=1),
    c.CommandTopicMigrated(resource_id=1, resource_type=0, broker_service_url="pulsar://a"),
    c.CommandWatchTopicUpdate(watcher_id=1, new_topics=["a"], deleted_topics=["b"], topics_hash="h"),
    c.CommandAckResponse(consumer_id=1, request_id=0),
    c.CommandGetLastMessageIdResponse(request_id=0, last_message_id=MESSAGE_ID),
    c.CommandPing(),
    c.CommandPong(),
)


def frames(rng: random.Random) -> bytes:
    """Return a few frames; some of their bytes are changed, left out or added."""
    message: c.Command = c.CommandMessage(consumer_id=1, message_id=MESSAGE_ID)
    made = [encode_frame(rng.choice(COMMANDS)) for _ in range(rng.randrange(1, 5))]
    made.append(b"".join(encode_send(message, b"metadata", rng.randbytes(20))))  # type: ignore[arg-type]
    data = bytearray(b"".join(made))
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(data))
        match rng.randrange(3):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                del data[at : at + rng.randrange(1, 4)]
            case _:
                data[at:at] = rng.randbytes(rng.randrange(1, 4))
    return bytes(data)


@pytest.mark.parametrize("seed", range(60))
async def test_any_bytes(pulsar: ScriptedPulsar, seed: int) -> None:
    rng = random.Random(seed)
    listener = RecordingListener()
    async with connected(keep_alive_interval=2.0) as connection:
        connection.registered.add_producer(1, listener)
        connection.registered.add_consumer(1, listener)
        connection.registered.add_watcher(1, listener)
        pulsar.first.freeze()
        asking = asyncio.create_task(connection.request("LAST_ID", last_id, timeout=3.0))
        (end,) = pulsar.connections
        for _ in range(3):
            await asyncio.sleep(0.1)
            end.write(frames(rng))
        (found,) = await asyncio.gather(asking, return_exceptions=True)
        expected = (c.CommandGetLastMessageIdResponse, PulsarServerError, ProtocolError, ConnectionLost)
        assert isinstance(found, (*expected, TimeoutError)) or "no answer within" in str(found)
        await asyncio.sleep(20)
        assert connection.is_closed, "a frozen broker answers no ping"
        ends = listener.named("on_connection_lost") + listener.named("on_broker_close")
        assert len(ends) == 3
