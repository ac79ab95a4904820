"""Pulsar's bytes <-> objects: commands, metadata, frames, batches. Nothing here does I/O.

- `commands/` and `metadata` are the messages: each is a `message` with `fields`, for which `compiling` makes functions, with `varint`.
- `frames` has commands with their payloads, `batch` writes the messages of a batch, `entry` reads an entry with its messages,
  `compression` what compresses it, `checksum` what protects it.
- Values: `message_id`, `ack_set`, `topic_name`, `keys`; `enums` and `server_errors` name numbers.
"""
