"""What a cluster is made of and what a test does to it from outside: options, runtime, seeded topics, faults, history.

The part of faults and history that is not Kafka's is in `broker.traffic`.

- `options` are what a user sets, and `static_configs` the same as Kafka's configs; `runtime` creates the parts from them.
- `call` takes a request to its handler. Before and after, `recorder` records it, and the faults of `faults` change it as `injection`
  says; `message_fields` finds names and errors in messages.
- What tests use: `faults`, `history`, `views`, `seeding`.
"""
