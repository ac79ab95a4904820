"""Requests of transactions to the transaction coordinator and to group coordinators, each repeated until it is answered.

No state: `transaction_client` and `open_transaction` keep it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.coordinators import GROUP, TRANSACTION
from asyncgroup.cluster.requests.actions import RequestAction
from asyncgroup.cluster.requests.repeat import repeat
from asyncgroup.cluster.requests.transactions import describe_transactions
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ErrorCode,
    ProducerFencedError,
    ProtocolError,
    TransportError,
    UnsupportedVersionError,
)
from asyncgroup.model import CommittedOffset, GroupOffsets, TopicPartition
from asyncgroup.net.backoff import RetryBackoff, RetryLoop
from asyncgroup.producer.transactions.missing_partitions import MissingPartitions
from asyncgroup.producer.transactions.requests import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    CONCURRENT_PAUSE,
    END_TXN,
    FIND_COORDINATOR,
    HIGHEST_V1,
    INIT_PRODUCER_ID,
    LOWEST_V2,
    REQUEST_ACTIONS,
    TXN_OFFSET_COMMIT,
    Table,
    TransactionAction,
    action_of,
    add_partitions_request,
    may_be_processed,
    most_urgent,
    txn_offset_commit_request,
)
from asyncgroup.producer.transactions.state import ProducerIdentity
from asyncgroup.producer.transactions.wait_log import WaitLog
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Message, Request

__all__ = ["Answer", "TransactionCoordinatorClient", "code_of"]

R = TypeVar("R", bound=Message)

TRANSACTION_LANE: Final = "transactions"
"""The purpose of the connections that carry these requests: a coordinator may take long to answer, and lookups of metadata and
of other coordinators, which joins wait for, must not wait for that."""

FEATURE: Final = "transaction.version"
"""The finalized feature whose level 2 means KIP-890."""

DESCRIBE_TIMEOUT: Final = 5.0
"""Seconds for DescribeTransactions, which only adds to an error's message."""

DETAILS: Final[Mapping[int, str]] = {
    ErrorCode.INVALID_TXN_STATE: (
        "the coordinator has no such open transaction: it may have aborted it after {timeout}, or another client ended "
        "it{advice}"
    ),
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "{timeout} exceeds transaction.max.timeout.ms of the broker",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the coordinator does not know this producer id, or not any more",
}
"""What an error code means here; `{timeout}` is the transaction timeout, `{advice}` what to do with a producer."""


class Answer(NamedTuple):
    """What to do after a request; RETRY or MOVED only if it is not repeated any more."""

    action: TransactionAction
    error: AsyncGroupError | None = None
    """Set unless the action is DONE."""
    producer: ProducerIdentity | None = None
    """The id and epoch in the response, if it has them."""
    is_uncertain: bool = False
    """Whether this attempt, or one before it, may have been processed, although `error` is set."""

    @property
    def leaves_commit_unknown(self) -> bool:
        """Whether a transaction may be committed after this answer to EndTxn.

        It may if an attempt is uncertain, with any answer to the last one but INVALID_TXN_STATE: the coordinator
        answers a commit that was made with success.
        """
        if self.error is None or code_of(self.error) == ErrorCode.INVALID_TXN_STATE:
            return False
        return self.is_uncertain or self.action in (TransactionAction.RETRY, TransactionAction.MOVED)


GoesOn = Callable[[Answer], bool]
"""Whether a request is repeated after this answer."""


def always(_answer: Answer) -> bool:
    """Repeat until the timeout."""
    return True


class TransactionCoordinatorClient:
    """Requests for one transactional id. Each is repeated for at most `timeout` seconds.

    `transaction_timeout` is that of its transactions in seconds; only a producer knows it, for InitProducerId and errors.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        transactional_id: str,
        timeout: float,
        transaction_timeout: float | None = None,
    ) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._timeout = timeout
        self._transaction_timeout = transaction_timeout
        self.on_retry: Callable[[AsyncGroupError], object] | None = None
        """Called with the error of an attempt that is repeated, unless it only waits for the end of another transaction."""

    def __repr__(self) -> str:
        return f"<TransactionCoordinatorClient {self._transactional_id!r}>"

    # --- transaction coordinator ----------------------------------------------------------------------------------

    async def supports_v2(self) -> bool:
        """Return whether transactions are of version 2, by the newest features that a broker has sent.

        Brokers send them when a connection is opened (`FinalizedFeatures`). One to the coordinator is opened first if there is
        none; otherwise a change of `transaction.version` is seen after the next new connection to any broker. The same
        holds in Java (`TransactionManager.maybeUpdateTransactionV2Enabled`), and brokers accept both versions until then.
        """
        with contextlib.suppress(AsyncGroupError):
            address = await self._cluster.coordinators.locate(self._transactional_id, TRANSACTION)
            await self._cluster.network.connection(address)
        return self._cluster.pool.features.level(FEATURE) >= 2

    async def init_producer_id(self, current: ProducerIdentity, goes_on: GoesOn = always) -> Answer:
        """Obtain the next epoch; with the `current` id and epoch only if they are still valid (KIP-360).

        The coordinator aborts a transaction that an earlier producer left open.
        """
        assert self._transaction_timeout is not None
        milliseconds = max(1, round(self._transaction_timeout * 1000))
        request = m.InitProducerIdRequest(self._transactional_id, milliseconds, *current)

        async def attempt() -> Answer:
            response = await self._to_coordinator(request, is_v2=False)
            answer = self._answer(INIT_PRODUCER_ID, response.error_code, "InitProducerId")
            producer = ProducerIdentity(response.producer_id, response.producer_epoch)
            # without an id the brokers would take the next records as written outside of the transaction
            if answer.error is None and min(producer) < 0:
                raise ProtocolError(
                    f"transactional id {self._transactional_id!r}: the response to InitProducerId has the "
                    f"producer id {response.producer_id} and epoch {response.producer_epoch}"
                )
            return answer._replace(producer=producer) if answer.error is None else answer

        return await self._repeat(attempt, self._transactional_id, TRANSACTION, goes_on)

    async def add_partitions(
        self, producer: ProducerIdentity, partitions: Iterable[TopicPartition], goes_on: GoesOn
    ) -> Answer:
        """Add partitions to the transaction (version 1), all of them or none."""
        wanted = list(partitions)
        request = add_partitions_request(self._transactional_id, *producer, wanted)
        lookups = MissingPartitions(self._cluster)

        async def attempt() -> Answer:
            response = await self._to_coordinator(request, is_v2=False)
            codes = {
                TopicPartition(topic.name, result.partition_index): result.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            }
            missing = await lookups.found_in(codes)
            return self._answer_by_partition(ADD_PARTITIONS, codes, "AddPartitionsToTxn", wanted, missing)

        return await self._repeat(attempt, self._transactional_id, TRANSACTION, goes_on)

    async def add_offsets(self, producer: ProducerIdentity, group_id: str, goes_on: GoesOn) -> Answer:
        """Add a group's offsets to the transaction (version 1)."""
        request = m.AddOffsetsToTxnRequest(self._transactional_id, *producer, group_id)

        async def attempt() -> Answer:
            response = await self._to_coordinator(request, is_v2=False)
            return self._answer(ADD_OFFSETS, response.error_code, f"AddOffsetsToTxn, group {group_id!r}")

        return await self._repeat(attempt, self._transactional_id, TRANSACTION, goes_on)

    async def end(self, producer: ProducerIdentity, *, commit: bool, is_v2: bool) -> Answer:
        """Commit or abort. In version 2 the answer has the next producer id and epoch.

        A repeated request is recognized by the coordinator if the response to the first one was lost.
        """
        request = m.EndTxnRequest(self._transactional_id, *producer, commit)

        async def attempt() -> Answer:
            response = await self._to_coordinator(request, is_v2=is_v2)
            what = "EndTxn (commit)" if commit else "EndTxn (abort)"
            # what is not in the table ends the producer: without EndTxn no other request is left that ends the transaction
            answer = self._answer(END_TXN, response.error_code, what, TransactionAction.FATAL)
            if answer.error is None and response.producer_id >= 0:  # -1 before KIP-890
                return answer._replace(
                    producer=ProducerIdentity(response.producer_id, response.producer_epoch)
                )
            return answer

        return await self._repeat(attempt, self._transactional_id, TRANSACTION, always)

    async def fenced_error(self, producer: ProducerIdentity) -> ProducerFencedError:
        """Return the error of a fenced producer, with what the coordinator knows of its transactional id now."""
        current = state = None
        try:
            async with asyncio.timeout(DESCRIBE_TIMEOUT):
                described = await describe_transactions(
                    self._cluster, [self._transactional_id], lane=TRANSACTION_LANE
                )
            for found in described.values.values():
                if found.state:
                    current, state = (found.producer_id, found.producer_epoch), found.state
        except (AsyncGroupError, TimeoutError):
            pass  # the error says less
        return ProducerFencedError(
            self._transactional_id,
            *producer,
            transaction_timeout=self._transaction_timeout,
            current=current,
            state=state,
        )

    async def error_of_lost_transaction(
        self, producer: ProducerIdentity, error: AsyncGroupError
    ) -> AsyncGroupError:
        """Return the error of a producer whose transaction the coordinator does not have (INVALID_TXN_STATE).

        If it knows a newer epoch, as after the transaction timeout, the producer is fenced: in versions before KIP-890 the
        coordinator says so itself.
        """
        fenced = await self.fenced_error(producer)
        return error if fenced.current in (None, producer) else fenced

    # --- group coordinator ----------------------------------------------------------------------------------------

    async def commit_offsets(
        self,
        producer: ProducerIdentity,
        group: GroupOffsets,
        left: dict[TopicPartition, CommittedOffset],
        goes_on: GoesOn,
        *,
        is_v2: bool,
    ) -> tuple[Answer, dict[TopicPartition, int]]:
        """Commit offsets in the transaction (TxnOffsetCommit); return the answer, and the error codes by partition.

        Those that are committed are removed from `left`; the rest is repeated, unless it does not exist any more.
        """
        codes: dict[TopicPartition, int] = {}
        lookups = MissingPartitions(self._cluster)

        async def attempt() -> Answer:
            codes.clear()  # the caller gets the codes of the last attempt
            request = txn_offset_commit_request(self._transactional_id, *producer, group, left)
            response = await self._request(group.group_id, GROUP, request, is_v2=is_v2)
            for topic in response.topics:
                for result in topic.partitions:
                    codes[TopicPartition(topic.name, result.partition_index)] = result.error_code
            for tp in [tp for tp, code in codes.items() if not code]:
                left.pop(tp, None)
                del codes[tp]
            what = f"TxnOffsetCommit, group {group.group_id!r}"
            missing = await lookups.found_in(codes)
            return self._answer_by_partition(TXN_OFFSET_COMMIT, codes, what, left, missing)

        return await self._repeat(attempt, group.group_id, GROUP, goes_on), codes

    # --- one request ------------------------------------------------------------------------------------------------

    async def _to_coordinator(self, request: Request[R], *, is_v2: bool) -> R:
        return await self._request(self._transactional_id, TRANSACTION, request, is_v2=is_v2)

    async def _request(self, key: str, kind: int, request: Request[R], *, is_v2: bool) -> R:
        lowest = LOWEST_V2.get(request.NAME, 0) if is_v2 else 0
        # a higher version would make a transaction of version 1 one of KIP-890
        highest = None if lowest else HIGHEST_V1.get(request.NAME)

        def build(version: int) -> Request[R]:
            if version < lowest:
                raise UnsupportedVersionError(
                    f"{FEATURE}=2 is finalized, but a broker has {request.NAME} up to version {version} only"
                )
            return request

        return await self._cluster.coordinators.request_versioned(
            key, type(request), build, lane=TRANSACTION_LANE, kind=kind, highest=highest
        )

    def _answer(
        self, table: Table, code: int, what: str, default: TransactionAction = TransactionAction.ABORT
    ) -> Answer:
        action = action_of(table, code, default)
        if action is TransactionAction.DONE:
            return Answer(action)
        subject = f"transactional id {self._transactional_id!r}, {what}"
        return Answer(action, BrokerError(code, subject, self._detail(code)))

    def _detail(self, code: int) -> str | None:
        detail, seconds = DETAILS.get(code), self._transaction_timeout
        if detail is None:
            return None
        if seconds is None:
            return detail.format(timeout="transaction_timeout", advice="")
        return detail.format(timeout=f"transaction_timeout={seconds:g} s", advice=". Close this producer")

    def _answer_by_partition(
        self,
        table: Table,
        codes: Mapping[TopicPartition, int],
        what: str,
        wanted: Iterable[TopicPartition],
        gone: Iterable[TopicPartition],
    ) -> Answer:
        """Return the answer to a response with these codes; partitions that are `gone` abort the transaction."""
        action, code = most_urgent(table, codes.values())
        # a deleted partition would be retried until the timeout, as its code is retriable
        if gone and action < TransactionAction.ABORT:
            action, code = TransactionAction.ABORT, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        missing = ", ".join(str(tp) for tp in wanted if tp not in codes)
        if action is TransactionAction.DONE and missing:
            subject = f"transactional id {self._transactional_id!r}, {what}"
            return Answer(
                TransactionAction.RETRY, ProtocolError(f"{subject}: the response has no entry for {missing}")
            )
        if action is TransactionAction.DONE:
            return Answer(action)
        where = ", ".join(str(tp) for tp, found in sorted(codes.items()) if found == code)
        return Answer(
            action, BrokerError(code, f"transactional id {self._transactional_id!r}, {what}, {where}")
        )

    async def _repeat(
        self, attempt: Callable[[], Awaitable[Answer]], key: str, kind: int, goes_on: GoesOn
    ) -> Answer:
        """Send a request until its answer needs no other attempt, or until the timeout."""
        retry = self._cluster.retry(timeout=self._timeout)
        short = RetryBackoff(CONCURRENT_PAUSE, self._cluster.config.retry_backoff_max, self._cluster.random)
        concurrent = RetryLoop(short, timeout=self._timeout)
        waits = WaitLog(self._timeout)
        is_uncertain = False

        async def once() -> Answer:
            nonlocal is_uncertain
            answer = await self._attempt(attempt)
            # a refusal says nothing about an attempt before it that may have been processed
            is_uncertain |= answer.is_uncertain
            if answer.action is TransactionAction.MOVED:
                self._cluster.coordinators.mark_stale(key, kind)
            return answer._replace(is_uncertain=is_uncertain)

        def decide(answer: Answer) -> RequestAction:
            action = REQUEST_ACTIONS.get(answer.action, RequestAction.FAIL)
            is_repeated = action in (RequestAction.RETRY, RequestAction.LOOK_UP)
            return RequestAction.FAIL if is_repeated and not goes_on(answer) else action

        def report(answer: Answer) -> None:
            if answer.error is not None and not _is_concurrent(answer) and self.on_retry is not None:
                self.on_retry(answer.error)
            waits.on_repeat(answer.error)

        return await repeat(once, decide, lambda made: concurrent if _is_concurrent(made) else retry, report)

    async def _attempt(self, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        try:
            answer = await attempt()
        except BrokerError as error:  # of FindCoordinator
            return Answer(action_of(FIND_COORDINATOR, error.code), error)
        except TransportError as error:
            return Answer(TransactionAction.RETRY, error, is_uncertain=may_be_processed(error))
        except AsyncGroupError as error:
            return Answer(TransactionAction.FATAL, error, is_uncertain=may_be_processed(error))
        if answer.error is None:
            return answer
        return answer._replace(is_uncertain=may_be_processed(answer.error))


def _is_concurrent(answer: Answer) -> bool:
    """Return whether the request only waits for the end of another transaction of its transactional id."""
    return code_of(answer.error) == ErrorCode.CONCURRENT_TRANSACTIONS


def code_of(error: object) -> int | None:
    """Return the error code of a BrokerError; None for other errors."""
    return error.code if isinstance(error, BrokerError) else None
