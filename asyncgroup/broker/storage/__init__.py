"""A cluster on disk (`EmbeddedCluster(data_dir=…)`): segments of logs as files, its metadata in a log of its own.

The directory holds `lock`, `metadata/` (`metadata_log`) and `topics/<name>.<id>/<partition>/<base offset>.log`
(`file_segments`), whose bytes are Kafka's: whole record batches, one behind the other. Every append is written before it
is acknowledged, so that a process that is killed loses nothing; only with `fsync` does a machine that loses its power.
"""

from __future__ import annotations
