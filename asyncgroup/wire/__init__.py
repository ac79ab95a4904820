"""Kafka's wire protocol: typed messages and record batches to bytes and back, without I/O.

- `tables`, `messages`: schemas and message classes, generated from Kafka's message specifications by `generate`, with
  `classes` (source text of the classes) and `schema` (schemas as values).
- `codec`: encodes and decodes messages by functions that `encoder` and `decoder` compile for each (message, version) on
  first use. `protocol`: request and response headers, the table of APIs. `versioned`: messages with a version prefix.
- `records`: record batches (magic 2). `legacy`: message sets (magic 0 and 1). `control`: transaction markers.
  `columnar`: records as columns. `compression`, `decompression`: codecs, with limits. `compacted_batches`: rewritten
  batches for log compaction. `off_loop`: long computations on threads.
- `scram`, `murmur2`, `checksum`: SCRAM arithmetic, the default partitioner's hash, CRC-32C.
"""
