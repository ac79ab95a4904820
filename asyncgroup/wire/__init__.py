"""Kafka's wire protocol: typed messages and record batches to bytes and back, without I/O.

- `tables`, `messages`: schemas and message classes, generated from Kafka's message specifications by `generate`, with
  `classes` (source text of the classes) and `schema` (schemas as values).
- `messages` is a package: each API has its own module, imported on first use; `loading` imports what traffic needs.
- `codec`: encodes and decodes messages and the client's frames by functions that `encoder` and `decoder` compile for each
  (message, version) on first use, also with a version prefix; with `compiling` and `primitives`. `apis`: the table of APIs.
- `batch_view`: headers of record batches. `batch_run`: small batches read together. `records`: their records,
  with the compiled code in `compiled`; `legacy`: messages of magic 0 and 1. `chunks`: headers of the chunks of a large value.
  `compression`: codecs, with levels; `decompression`, with limits.
- `message`: the base classes of messages. `kafka_releases`: which release has what, for errors of older brokers.
- `scram`: SCRAM arithmetic.
"""
