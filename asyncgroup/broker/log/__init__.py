"""The log of a partition: batches in segments, in memory or in files; producers, leader epochs, compaction."""
