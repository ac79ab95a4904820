"""Topics and namespaces.

- `namespaces`: which topics exist, with their policies and schemas.
- `topic`: a topic or partition. It has a log, subscriptions, producers with their access modes and deduplication (`topic_producers`), and
  a `transaction_buffer`. `non_persistent_topic`: one that keeps nothing.
- `policies` of namespaces and topics; `policy_checks`: expiry and backlog quotas, which follow from them; `retention`: which messages a
  topic deletes; `publish_throttle`: how many it takes.
"""
