"""All logs of a cluster (Kafka's `LogManager`): retention, the log cleaner, and the data directory of a cluster on disk.

The directory of `EmbeddedCluster(data_dir=…)` contains `lock`, `metadata/` (see `metadata.metadata_log`) and
`topics/<name>.<id>/<partition>/<base offset>.log` (see `log.file_segments`). Segment files have Kafka's format: record
batches one after another. Every append is written before it is acknowledged, so acknowledged records survive a killed
process; they survive a power loss only with `fsync`.

`data_directory` opens and locks it, and `restore` reads it at the start. `retention` and `log_cleaner` run periodically, also
without a directory.
"""

from __future__ import annotations
