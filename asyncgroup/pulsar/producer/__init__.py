"""Producers of a Pulsar client: PulsarProducer in `producer`, as `config` configures it; `producer_properties` has the names of Java.

The way of a message:

- `producer` gives it to its `message_sends`: `interceptors` get it, `outgoing` checks it; `topic_partitions` chooses the partition by `routing`.
- `partition_producer` reserves room for it; its `send_queue` numbers it (`sequence_ids`), puts it into the open batch of
  `batch_container` or sends it alone, and has it encoded by `encoding`. `send_timers` closes batches and ends what is too old.
  `producer_registration` keeps it at its broker.
- `transaction_sends`: messages that are parts of a transaction take another way to their partition.
- `pending_messages` keeps each frame until its receipt, and `send_queue` writes all of them again after a reconnect.
- `batch_reports`: the events of each batch for hooks.
- `lost_messages` are those that `flush` reports. `foreign_names`: what methods of other clients are called here.
"""
