"""Producers of a Pulsar client, as `PulsarProducerConfig` in `config` configures them.

The way of a message to one topic or partition:

- `outgoing` checks it, `routing` chooses the partition, `sequence_ids` numbers it.
- `send_queue` puts it into the open batch of `batch_container` or sends it alone, and has it encoded by `encoding`.
- `pending_messages` keeps each frame until its receipt, and `send_queue` writes all of them again after a reconnect.
"""
