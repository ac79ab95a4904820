"""The tests of pulsar-client-go that run against the embedded Pulsar, by file, and those that do not, by reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["ALONE", "CREDENTIALS", "FILES", "LEFT_OUT", "LONG", "REPEATED"]

FILES: Final[Sequence[str]] = (
    "client_impl_test.go",
    "client_impl_with_slog_test.go",
    "consumer_multitopic_test.go",
    "consumer_regex_test.go",
    "consumer_test.go",
    "consumer_zero_queue_test.go",
    "message_chunking_test.go",
    "producer_test.go",
    "reader_test.go",
    "schema_test.go",
    "table_view_test.go",
    "transaction_test.go",
)
"""The files whose tests run, except those of LEFT_OUT; tests of other files need no broker, or several clusters in containers."""

LEFT_OUT: Final[Mapping[str, Sequence[str]]] = {
    "it starts Apache Pulsar in a container": (
        "TestConsumerKeepReconnectingAndThenCallClose",
        "TestProducerKeepReconnectingAndThenCallClose",
        "TestReconnectConsumer",
        "TestReconnectedBrokerSendPermits",
        "TestSendAsyncCouldTimeoutWhileReconnecting",
    ),
    "it skips itself": ("TestMessageSingleRouter",),
    "it seeks to the present time, which on a broker in memory may be the millisecond of the last message": (
        "TestReaderWithSeekByTime",
    ),
}
"""Tests that do not run, by reason."""

REPEATED: Final[Sequence[str]] = (
    # at which of two consumers three keys are depends on names by chance; on the ring of hashes they are neighbours
    "TestConsumerKeyShared",
    "TestConsumerKeySharedWithDelayedMessages",
    "TestConsumerKeySharedWithOrderingKey",
    "TestKeyBasedBatchProducerConsumerKeyShared",
)
"""Tests that may fail although the broker is right: they have several attempts."""

LONG: Final[Sequence[str]] = (
    "TestConsumerConnectError",
    "TestProducerConnectError",
    "TestReaderConnectError",
    "TestTxn_ImplCommitOrAbort",
    "TestTxn_RegisterOpAndEndOp",
)
"""Tests that wait for half a minute or more: they begin first."""

ALONE: Final[Sequence[str]] = (
    # they set policies of all topics
    "TestSendContextExpired",
    "TestSendTimeout",
    # each has a topic of another one
    "TestConsumerEventTime",
    "TestConsumerForceUnSubscribe",
    "TestConsumerGetLastMessageIDs",
    "TestConsumerUnSubscribe",
    "TestEventTime",
    "TestProducerConsumer",
    "TestReaderWithBackoffPolicy",
)
"""Tests beside which no other one runs."""

CREDENTIALS: Final[Sequence[str]] = (
    "TestHTTPBasicAuth",
    "TestHTTPOAuth2AuthFailed",
    "TestHTTPSAuthError",
    "TestHTTPSBasicAuth",
    "TestHTTPSTokenAuthFromFile",
    "TestHTTPTokenAuth",
    "TestHTTPTokenAuthFromFile",
    "TestHTTPTokenAuthWithSupplier",
    "TestTLSAuthError",
    "TestTokenAuth",
    "TestTokenAuthFromFile",
    "TestTokenAuthWithClientVersion",
    "TestTokenAuthWithSupplier",
)
"""Tests with a broker that accepts no client without a credential."""
