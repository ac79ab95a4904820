"""Producers of a Pulsar client: PulsarProducer in `producer`, as `config` configures it.

The way of a message:

- `producer` has it checked by `outgoing`, passes it to `interceptors`, and chooses the partition by `routing`.
- `partition_producer` reserves room for it and keeps the timers; its `send_queue` numbers it (`sequence_ids`), puts it into
  the open batch of `batch_container` or sends it alone, and has it encoded by `encoding`.
- `pending_messages` keeps each frame until its receipt, and `send_queue` writes all of them again after a reconnect.
- `foreign_names`: what methods of other clients are called here.
"""
