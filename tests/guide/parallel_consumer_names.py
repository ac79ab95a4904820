"""Names of Confluent's parallel-consumer 0.5.3: options, methods of the processor, and what its functions get."""

from __future__ import annotations

from typing import Final

__all__ = ["OPTIONS", "RECORDS"]

OPTIONS: Final = """
consumer producer managedExecutorService managedThreadFactory meterRegistry pcInstanceTag metricsTags
allowEagerProcessingDuringTransactionCommit commitLockAcquisitionTimeout produceLockAcquisitionTimeout commitInterval
ordering commitMode maxConcurrency invalidOffsetMetadataPolicy defaultMessageRetryDelay retryDelayProvider sendTimeout
offsetCommitTimeout batchSize minBatchSize minBatchTimeoutInMillis thresholdForTimeSpendInQueueWarning maxFailureHistory
messageBufferSize shutdownTimeout drainTimeout saslAuthenticationRetryTimeout saslAuthenticationExceptionRetryBackoff
"""
"""Fields of ParallelConsumerOptions."""

RECORDS: Final = """
getSingleRecord getSingleConsumerRecord value key offset stream streamConsumerRecords getContextsFlattened
getConsumerRecordsFlattened getByTopicPartitionMap size getOffsetsFlattened getOffsets getConsumerRecord
getNumberOfFailedAttempts getLastFailureAt
"""
"""Methods of PollContext and RecordContext."""
