"""What a broker does for each command of a client.

- `broker_requests` has the table of all commands, and does lookups; the others are those of producers (`producer_requests`),
  consumers (`consumer_requests`), transactions (`transaction_requests`), schemas (`schema_requests`, which producers and consumers use),
  and lists of topics and their watchers (`topic_lists`).
- `services`: what they need of a node and of a connection; `topic_names`: the names of topics in commands.
"""
