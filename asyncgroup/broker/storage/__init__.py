"""Storage of a cluster on disk (`EmbeddedCluster(data_dir=…)`): segment files and a metadata log.

The directory contains `lock`, `metadata/` (see `metadata_log`) and `topics/<name>.<id>/<partition>/<base
offset>.log` (see `file_segments`). Segment files have Kafka's format: record batches one after another. Every
append is written before it is acknowledged, so acknowledged records survive a killed process; they survive a power
loss only with `fsync`.
"""

from __future__ import annotations
