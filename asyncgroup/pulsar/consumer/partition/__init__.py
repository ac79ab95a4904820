"""The consumer of one partition, or of a topic without partitions.

- `pulsar_consumer`: what the others use, and its `listener`. `registration` keeps it at its broker, with the request that
  `subscribing` makes.
- `message_outcomes` acknowledges its messages, or has them delivered again; `transaction_acks` acknowledges them in transactions,
  for each entry what `acked_in_transaction` keeps; `consumer_parts` has what all share.
- `position`: where it goes on, after `seeking`, which moves the subscription, and after a reconnect. `backlog` finds the end.
- `identity`: which consumer it is.
- `reports`: the events of entries and acknowledgements for hooks.
"""
