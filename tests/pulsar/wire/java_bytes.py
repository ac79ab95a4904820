"""Bytes that Pulsar 4.2.4's Java classes have written (`Commands`, `CompressionCodecProvider`, `MessageIdImpl`, `TopicList`).

`BODY` is what was compressed. The batch has five messages: with key, time and property; a null value; an empty one; one
that was compacted; one with a binary key and 200 bytes.
"""

from __future__ import annotations

from typing import Final

BODY: Final = ("Pulsar " * 20 + "é").encode()

COMPRESSED: Final = [
    ("lz4", b"", "00"),
    ("lz4", b"x", "1078"),
    ("lz4", BODY, "7f50756c7361722007006f50617220c3a9"),
    ("zlib", b"", ""),
    ("zlib", b"x", "789caa00000000ffff"),
    ("zlib", BODY, "789c0a28cd294e2c5208180cd4e19500000000ffff"),
    ("zstd", b"", "28b52ffd240001000099e9d851"),
    ("zstd", b"x", "28b52ffd24010900007823110483"),
    ("zstd", BODY, "28b52ffd248e8500004850756c73617220c3a901000251c5080e83dec2"),
    ("snappy", b"", "00"),
    ("snappy", b"x", "010078"),
    ("snappy", BODY, "8e011850756c73617220fe0700fe0700050704c3a9"),
]
"""Compression, body, and what is sent of it."""

IDS: Final = [
    ("080c10d9023000", "12:345:-1"),
    ("080c10d90218033000", "12:345:3"),
    ("080c10d902180320073000", "12:345:3:7"),
    ("080c10d9022007300a", "12:345:-1:7"),
    ("08ffffffffffffffffff0110ffffffffffffffffff013000", "-1:-1:-1"),
    ("08ffffffffffffffff7f10ffffffffffffffff7f3000", "9223372036854775807:9223372036854775807:-1"),
    ("080c10d902180330003a09080c10d40218033000", "12:340:3;12:345:3"),
]
"""Serialised ids and their text; the last one is of a message in chunks."""

TOPICS_HASHES: Final = [
    ([], "00000000"),
    (["persistent://public/default/a"], "e4a876e3"),
    (["persistent://public/default/b", "persistent://public/default/a"], "c7559e98"),
    (["c", "b", "a"], "ce8814bc"),
    (["é", "a"], "d631a044"),
]

METADATA: Final = bytes.fromhex(
    "0a0e7374616e64616c6f6e652d302d3110e8071880d8c1a28c3422060a016112016222060a02c3a912002a056f7468657232"
    "036b65793a095f5f6c6f63616c5f5f3a0178400348ffffffffffffffffff0158016081d8c1a28c346a0e0a016b1201001a06"
    "0a016d1201768201010988010192010201029801ffffffffffffffffff01a00114b001ffffffffffffffffff01b80105c001"
    "eb07c80101d2010175d80103e001fbffffffffffffffff01e80101f80100f801ac02"
)
"""MessageMetadata with most of its fields, some of them negative."""

BATCH: Final = bytes.fromhex(
    "000000180a060a017012017112026b3118032880d8c1a28c3440e8076f6e6500000007180040e907480100000005180040ea"
    "070000000418002001000000111204617a493d18c80130013a010740ec070000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "000000000000000000000000000000000000000000000000000000000000"
)

SEND: Final = bytes.fromhex(
    "000000910000000e0806320a080110e807180530ec070e01a78a2705000000180a017010e8071880d8c1a28c344001489802"
    "5805c001ec07ff43000000180a060a017012017112026b3118032880d8c1a28c3440e8076f6e6500000007180040e9074801"
    "00000005180040ea070000000418002001000000111204617a493d18c80130013a010740ec0700000200ae500000000000"
)
"""SEND of the batch, compressed with LZ4."""

MESSAGE: Final = bytes.fromhex(
    "000000a10000001e08094a1a08051210080c10d90218ffffffffffffffffff011802201b28030e01a78a2705000000180a01"
    "7010e8071880d8c1a28c3440014898025805c001ec07ff43000000180a060a017012017112026b3118032880d8c1a28c3440"
    "e8076f6e6500000007180040e907480100000005180040ea070000000418002001000000111204617a493d18c80130013a01"
    "0740ec0700000200ae500000000000"
)
"""MESSAGE with it: its ack set has indexes 0, 1, 3 and 4."""

MESSAGE_WITH_BROKER_METADATA: Final = bytes.fromhex(
    "000000b00000001e08094a1a08051210080c10d90218ffffffffffffffffff011802201b28030e02000000090885d8c1a28c"
    "3410680e01a78a2705000000180a017010e8071880d8c1a28c3440014898025805c001ec07ff43000000180a060a01701201"
    "7112026b3118032880d8c1a28c3440e8076f6e6500000007180040e907480100000005180040ea0700000004180020010000"
    "00111204617a493d18c80130013a010740ec0700000200ae500000000000"
)

CONNECTED: Final = bytes.fromhex(
    "0000002d0000002908031a250a1250756c73617220536572766572342e322e341015188080c00222082001280130013801"
)

ERROR: Final = bytes.fromhex("0000001900000015080e721108ffffffffffffffffff0110031a026e6f")

FLOW: Final = bytes.fromhex("0000000d00000009080b5a05080510e807")

ACK: Final = bytes.fromhex("0000001c00000018080a5214080510001a05080c10d90220032a050a01781007")

ACK_OF_INDEXES: Final = bytes.fromhex(
    "000000220000001e080a521a080510001a12080c10d90228f7ffffffffffffffff01280f4009"
)

LOOKUP: Final = bytes.fromhex(
    "0000002c000000280817ba01230a1d70657273697374656e743a2f2f7075626c69632f64656661756c742f7810071801"
)

SERVER_ERRORS: Final = [
    "UnknownError",
    "MetadataError",
    "PersistenceError",
    "AuthenticationError",
    "AuthorizationError",
    "ConsumerBusy",
    "ServiceNotReady",
    "ProducerBlockedQuotaExceededError",
    "ProducerBlockedQuotaExceededException",
    "ChecksumError",
    "UnsupportedVersionError",
    "TopicNotFound",
    "SubscriptionNotFound",
    "ConsumerNotFound",
    "TooManyRequests",
    "TopicTerminatedError",
    "ProducerBusy",
    "InvalidTopicName",
    "IncompatibleSchema",
    "ConsumerAssignError",
    "TransactionCoordinatorNotFound",
    "InvalidTxnStatus",
    "NotAllowedError",
    "TransactionConflict",
    "TransactionNotFound",
    "ProducerFenced",
]
"""By number."""
