"""Transactions of Pulsar: messages and acknowledgements that become visible together, or not at all.

- `transaction`: PulsarTransaction. `enlistments`: the topics, subscriptions, producers and consumers that take part in it; `operations`,
  which it waits for before it ends.
- `late_operations`: what reaches a broker after the end of its transaction.
- `coordinators`: the transaction coordinators of a cluster; `coordinator`: one of them, and requests to it.
- `errors`, `txn_id`.
"""
