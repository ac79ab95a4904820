"""Random programs of the data plane: producers and consumers with all versions, valid and invalid, with transactions.

A program is defined by its seed: on two brokers it sends the same requests, in versions that change from step to step.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias

from asyncgroup.broker.metadata.topics import OFFSETS_TOPIC
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from tests.broker.batches import batch, with_crc
from tests.broker.transactional import add_partitions, write_markers
from tests.interop.parity.asks import commit, fetch, list_offsets, offset_fetch, produce
from tests.interop.parity.records import delete_records, leader_epoch
from tests.interop.parity.scene import TYPED_PRODUCER, Scene, Until

__all__ = ["AnyVersions", "Program"]

CODECS: Final = ("none", "none", "gzip", "snappy", "lz4", "zstd")
LATE: Final = 10**12
"""A timestamp (ms) earlier than any marker's and later than all others of the programs."""

CRC_FROM: Final = 21
HEADER_SIZE: Final = 61
CHANGED_WITH_CRC: Final = range(43, HEADER_SIZE)
"""The bytes that are damaged together with a matching CRC: producer fields and record count. Elsewhere a real broker fixes
the value (timestamps), decodes the records, which the embedded one leaves to consumers, or checks in another order
(attributes).
"""

SETTLING: Final = 400
PAUSE: Final = 0.01

Place: TypeAlias = tuple[str, int]


class AnyVersions(Scene):
    """A scene whose requests are sent in the versions in `chosen`, by API."""

    chosen: dict[str, int]

    def version(self, api: str) -> int:
        return self.chosen.get(api, self.ranges[api][1])

    def keep(self, label: str, answer: object, version: int | None = None) -> None:
        super().keep(label, answer, version)
        _tidy(self.answers[label])


def _tidy(value: object) -> None:
    """Remove differences without meaning."""
    if isinstance(value, list):
        for each in value:
            _tidy(each)
    if not isinstance(value, dict):
        return
    numbers = value.get("partitions")
    if isinstance(numbers, list) and all(isinstance(each, int) for each in numbers):
        numbers.sort()  # a set, in DescribeTransactions
        # The real cluster of the tests has four partitions, not fifty.
        if value.get("topic") == OFFSETS_TOPIC:
            value["partitions"] = len(numbers)
    if value.get("aborted_transactions"):
        # A real broker's transaction index is coarse: it also lists transactions after the returned records.
        last = max((each["base_offset"] + each["last_offset_delta"] for each in value["records"]), default=-1)
        aborted = value["aborted_transactions"]
        value["aborted_transactions"] = [each for each in aborted if each["first_offset"] <= last]
    for each in value.values():
        _tidy(each)


class Program:
    """A random program, and its state from the responses so far."""

    def __init__(self, scene: AnyVersions, seed: int) -> None:
        self.scene = scene
        self.rng = random.Random(seed)
        scene.chosen = {}
        self._asked = 0
        self._topics: list[str] = []
        self._places: list[Place] = []
        self._names: list[str] = []
        self._groups: list[str] = []
        self._next: dict[tuple[ProducerIdAndEpoch, Place], int] = {}
        self._lives: dict[str, list[ProducerIdAndEpoch]] = {}
        self._starts: dict[Place, list[int]] = {}
        self._session: tuple[int, int, int] | None = None

    async def run(self, steps: int) -> None:
        """Create topics, groups and producers, then run `steps` random steps."""
        await self._begin()
        kinds = [step for step, weight in self._steps() for _ in range(weight)]
        for _ in range(steps):
            self.scene.chosen = {
                api: self.rng.randint(*self.scene.ranges[api]) for api in sorted(self.scene.ranges)
            }
            await self.rng.choice(kinds)()

    def _steps(self) -> Iterable[tuple[Callable[[], Awaitable[None]], int]]:
        """Return the possible steps with their weights."""
        return (
            (self._write, 6),
            (self._write_in_transaction, 10),
            (self._write_damaged, 1),
            (self._add, 4),
            (self._end, 5),
            (self._init_again, 2),
            (self._commit_in_transaction, 3),
            (self._add_offsets, 2),
            (self._mark, 1),
            (self._commit, 1),
            (self._fetch_offsets, 2),
            (self._read, 5),
            (self._read_in_session, 3),
            (self._look_up, 4),
            (self._find_epoch, 1),
            (self._delete, 1),
            (self._describe, 2),
        )

    async def _begin(self) -> None:
        scene = self.scene
        self._topics = [
            await scene.topic("a", 2),
            await scene.topic("b", 2, message_timestamp_type="LogAppendTime"),
            await scene.topic("c", 1, cleanup_policy="compact"),
        ]
        a, b, c = self._topics
        self._places = [(a, 0), (a, 1), (b, 0), (b, 1), (c, 0)]
        self._names = [await scene.transactional_id(name) for name in ("x", "y")]
        self._groups = [await scene.group(name) for name in ("g", "h")]
        for name in self._names:
            error_code = await self._start(name)
            assert not error_code, f"InitProducerId of {name}: {error_code}"

    # -- choices -----------------------------------------------------------------------------------------------

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _place(self) -> Place:
        return self.rng.choice(self._places)

    def _values(self) -> list[bytes]:
        return [b"%d" % self.rng.randrange(1000) for _ in range(self.rng.randint(1, 3))]

    def _producer(self) -> tuple[str, ProducerIdAndEpoch]:
        """Return a transactional id and a producer: mostly its latest, sometimes an earlier, future or unknown one."""
        name = self.rng.choice(self._names)
        lives = self._lives[name]
        last, earlier, unknown = lives[-1], self.rng.choice(lives), ProducerIdAndEpoch(TYPED_PRODUCER + 77, 0)
        others = [last.bumped, ProducerIdAndEpoch(last.id, max(0, last.epoch - 1)), unknown]
        return name, self.rng.choices([last, earlier, *others], [80, 10, 4, 3, 3])[0]

    def _sequence(self, producer: ProducerIdAndEpoch, place: Place) -> int:
        """Return a sequence number: mostly the next one, else a duplicate or a gap."""
        following = self._next.get((producer, place), 0)
        again = max(0, following - self.rng.randint(1, 4))
        return self.rng.choices([following, again, self.rng.randrange(6), 2**31 - 2], [70, 20, 8, 2])[0]

    async def _ask(self, label: str, request: Any, *, until: Until | None = None) -> Any:
        self._asked += 1
        return await self.scene.ask(f"{self._asked} {label}", request, until=until)

    # -- writing -----------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        place = self._place()
        timestamp = self.rng.choice([-1, 100, 200, self.rng.randrange(201, 1000), LATE])
        step = self.rng.choice([0, 1, -1, 50]) if timestamp > 200 else 0
        values, codec, who = self._values(), self.rng.choice(CODECS), {}
        producer = ProducerIdAndEpoch(
            TYPED_PRODUCER + self.rng.randrange(3), self.rng.choice([0, 0, 0, 1, 1, 2])
        )
        sequence = self._sequence(producer, place)
        if numbered := self._chance(0.7):
            who = {
                "producer_id": producer.id,
                "producer_epoch": producer.epoch,
                "base_sequence": sequence,
            }
        data = batch(*values, timestamp=timestamp, step=step, codec=codec, **who)
        taken = await self._put(f"write {codec} {who}", place, data, acks=self.rng.choice([-1, 1]))
        if numbered and taken:
            self._count(producer, place, sequence + len(values))

    async def _write_in_transaction(self) -> None:
        (name, producer), place, values = self._producer(), self._place(), self._values()
        sequence = self._sequence(producer, place)
        # With a future epoch, a non-transactional write would leave a real broker with a transaction that cannot end.
        plain = producer in self._lives[name] and self._chance(0.05)
        said = None if plain or self._chance(0.03) else self.rng.choices([name, self._names[0]], [97, 3])[0]
        data = batch(
            *values,
            timestamp=self.rng.randrange(1000),
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=not plain,
        )
        label = f"write {producer.epoch} from {sequence}{' plain' if plain else ''} in"
        if await self._put(f"{label} {said and said[0]}", place, data, transactional_id=said):
            self._count(producer, place, sequence + len(values))

    async def _write_damaged(self) -> None:
        good = batch(*self._values(), timestamp=300)
        if self._chance(0.5):
            at = self.rng.choice(CHANGED_WITH_CRC)
            data = with_crc(good, at, bytes([self.rng.randrange(256)]))
        else:
            at = self.rng.randrange(CRC_FROM - 4, len(good))
            data = good[:at] + bytes([good[at] ^ 1 << self.rng.randrange(8)]) + good[at + 1 :]
        if self._chance(0.2):
            data = data[: self.rng.randrange(at, len(good))]
        await self._put(f"write damaged {data.hex()}", self._place(), data)

    async def _put(self, label: str, place: Place, data: bytes, **more: Any) -> bool:
        """Send Produce; return whether the batch was appended."""
        topic, index = place
        answer = await self._ask(
            f"{label} {topic[0]}{index}", produce(self.scene, topic, {index: data}, **more)
        )
        result = answer.responses[0].partition_responses[0]
        if not result.error_code:
            self._starts.setdefault(place, []).append(result.base_offset)
        return not result.error_code

    def _count(self, producer: ProducerIdAndEpoch, place: Place, following: int) -> None:
        """Set the next sequence number, which may wrap around."""
        key = (producer, place)
        self._next[key] = max(self._next.get(key, 0), following & 2**31 - 1)

    async def _delete(self) -> None:
        """Send DeleteRecords up to the start of a batch.

        Inside of a batch, a real broker's last stable offset would lag behind.
        """
        topic, index = place = self._place()
        offset = self.rng.choice(self._starts.get(place, [0]))
        await self._ask(f"delete {topic[0]}{index} {offset}", delete_records(topic, index, offset))

    # -- transactions ------------------------------------------------------------------------------------------

    async def _start(self, name: str, known: ProducerIdAndEpoch | None = None) -> int:
        more: dict[str, int] = {}
        if known is not None and self.scene.version("InitProducerId") >= 3:
            more = {"producer_id": known.id, "producer_epoch": known.epoch}
        # Kafka allocates producer ids in blocks of a thousand, and answers with COORDINATOR_LOAD_IN_PROGRESS while it
        # fetches the next block (`RPCProducerIdManager.generateProducerId`).
        answer = await self._ask(
            f"start {name[0]} {known and known.epoch}",
            m.InitProducerIdRequest(name, 60_000, **more),
            until=lambda answer: answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        )
        await self._wait_completed(name)
        if not answer.error_code:
            self._lives.setdefault(name, []).append(
                ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
            )
        return int(answer.error_code)

    async def _init_again(self) -> None:
        name, producer = self._producer()
        await self._start(name, self.rng.choice([None, producer]))

    async def _add(self) -> None:
        (name, producer), (topic, index) = self._producer(), self._place()
        partitions = self.rng.choices([[index], [0, 1], [index, 9]], [60, 30, 10])[0]
        request = add_partitions(
            producer,
            *partitions,
            topic=topic,
            version=self.scene.version("AddPartitionsToTxn"),
            name=name,
            verify=self._chance(0.5),
        )
        await self._ask(f"add {topic[0]}{partitions} to {name[0]} {producer.epoch}", request)

    async def _add_offsets(self) -> None:
        (name, producer), group = self._producer(), self.rng.choice(self._groups)
        request = m.AddOffsetsToTxnRequest(name, *producer, group)
        await self._ask(f"add offsets of {group[0]} to {name[0]} {producer.epoch}", request)

    async def _commit_in_transaction(self) -> None:
        (name, producer), (topic, index), cls = self._producer(), self._place(), m.TxnOffsetCommitRequest
        group, offset = self.rng.choice(self._groups), self.rng.randrange(50)
        offsets = [
            cls.TxnOffsetCommitRequestTopic(topic, [cls.TxnOffsetCommitRequestPartition(index, offset)])
        ]
        label = f"offsets of {group[0]} in {name[0]} {producer.epoch}"
        await self._ask(label, cls(name, group, *producer, topics=offsets))

    async def _end(self) -> None:
        (name, producer), commits = self._producer(), self._chance(0.6)
        answer = await self._ask(
            f"{'commit' if commits else 'abort'} {name[0]} {producer.epoch}",
            m.EndTxnRequest(name, *producer, commits),
        )
        await self._wait_completed(name)
        if not answer.error_code and self.scene.version("EndTxn") >= 5:
            now, lives = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch), self._lives[name]
            if now != lives[-1]:
                lives.append(now)

    async def _mark(self) -> None:
        """Send WriteTxnMarkers, never with a future epoch, which would block the coordinator's own markers forever."""
        (topic, index), version = self._place(), self.rng.randrange(3)
        stranger = ProducerIdAndEpoch(TYPED_PRODUCER + self.rng.randrange(3), self.rng.randrange(3))
        producer = self.rng.choice([stranger, stranger, self.rng.choice(self._lives[self._names[0]])])
        request = write_markers(producer, index, commit=self._chance(0.5), topic=topic)
        if self.scene.version("WriteTxnMarkers") >= 2:
            request.markers[0].transaction_version = version
        await self._ask(f"mark {topic[0]}{index} {producer.epoch}", request)

    async def _wait_completed(self, name: str) -> None:
        """Wait until the transaction is not in a prepare state: a real broker writes its markers in the background."""
        for _ in range(SETTLING):
            described = await self.scene.quietly(m.DescribeTransactionsRequest([name]), 0)
            if not described.transaction_states[0].transaction_state.startswith("Prepare"):
                return
            await asyncio.sleep(PAUSE)
        raise AssertionError(f"the transaction of {name} was not completed in {SETTLING * PAUSE:g} s")

    # -- reading -----------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        topic, index = self._place()
        offsets = {index: self.rng.choice([0, self.rng.randrange(40)])}
        if topic != self._topics[2] and self._chance(0.3):
            offsets = {0: self.rng.randrange(20), 1: self.rng.randrange(20)}
        more: dict[str, Any] = {"isolation_level": 1} if self._chance(0.5) else {}
        if not more:
            more["limit"] = self.rng.choice([1 << 20, 200, 1])
        if self.scene.version("Fetch") >= 12 and self._chance(0.2):
            more["last_epoch"] = self.rng.choice([0, 0, 1])
        await self._ask(f"read {topic[0]}{offsets} {more}", fetch(self.scene, topic, offsets, **more))

    async def _read_in_session(self) -> None:
        """Send one request of a fetch session, in the version in which the session began (KIP-227)."""
        topic = self._topics[0]
        if self._session is None or self._chance(0.1):
            version = self.rng.randint(max(7, self.scene.ranges["Fetch"][0]), self.scene.ranges["Fetch"][1])
            number, epoch = 0, 0
        else:
            number, epoch, version = self._session
        self.scene.chosen["Fetch"] = version
        offsets = {index: self.rng.randrange(30) for index in range(2) if epoch == 0 or self._chance(0.4)}
        forgotten = [1] if epoch and self._chance(0.1) else []
        said = epoch + 5 if epoch and self._chance(0.1) else epoch
        request = fetch(
            self.scene, topic, offsets, forgotten=forgotten, session_id=number, session_epoch=said
        )
        answer = await self._ask(f"session {offsets} -{forgotten} {said}", request)
        if not answer.error_code:
            self._session = (answer.session_id, epoch + 1, version) if answer.session_id else None

    async def _look_up(self) -> None:
        topic, index = self._place()
        timestamps = [-1, -1, -2, -4, -5]
        if topic != self._topics[1]:  # it has LogAppendTime
            timestamps += [0, 100, 150, 200, 201, self.rng.randrange(1000), LATE, LATE + 1]
        timestamp = self.rng.choice(timestamps)
        isolation = self.rng.choice([0, 1]) if self.scene.version("ListOffsets") >= 2 else 0
        request = list_offsets(self.scene, topic, [(index, timestamp)], isolation=isolation)
        await self._ask(f"look up {topic[0]}{index} {timestamp} {isolation}", request)

    async def _find_epoch(self) -> None:
        topic, index = self._place()
        epoch = self.rng.choice([-1, 0, 1])
        await self._ask(f"end of epoch {epoch} in {topic[0]}{index}", leader_epoch(topic, index, epoch))

    async def _commit(self) -> None:
        place, group = self._place(), self.rng.choice(self._groups)
        offset = self.rng.randrange(50)
        await self._ask(f"offset of {group[0]} {offset}", commit(self.scene, group, {place: offset}))

    async def _fetch_offsets(self) -> None:
        group, (a, b, _) = self.rng.choice(self._groups), self._topics
        stable = self.scene.version("OffsetFetch") >= 7 and self._chance(0.5)
        request = offset_fetch(self.scene, group, {a: [0, 1], b: [0]}, require_stable=stable)
        await self._ask(f"offsets of {group[0]} {stable}", request)

    async def _describe(self) -> None:
        (topic, index), cls = self._place(), m.DescribeProducersRequest
        await self._ask(f"producers of {topic[0]}{index}", cls([cls.TopicRequest(topic, [index])]))
        name = self.rng.choice(self._names)
        await self._ask(f"transaction of {name[0]}", m.DescribeTransactionsRequest([name]))
