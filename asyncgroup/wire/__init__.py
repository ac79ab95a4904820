"""Kafka's wire protocol: bytes to typed messages and back. Starts no I/O.

- Generated from Kafka's message specifications by `generate` (with `classes`): `tables`, `messages`.
- Bytes of messages: `codec` compiles a function for each (message, version) on first use, by `encoder` and `decoder` out
  of `schema`; `protocol` has headers and the table of APIs, `versioned` what carries its version in front.
- Bytes of records: `records` (batches of magic 2), `legacy` (magic 0 and 1), `control` (transaction markers).
"""
