"""Consumers of Pulsar topics, as `config` configures them; `consumer_properties` has the names of Java, `foreign_names`
what methods and settings of other clients are called here.

- `topic_consumer` and `multi_topics_consumer`: what a program uses, for one topic or several. `reader`: a consumer whose subscription
  does not stay, at `read_positions`. `table_view`: the last value of each key.
- `topics/`: the topics and partitions of such a consumer, also those of a pattern: `topics_pattern`.
- `partition/`: the consumer of one partition, at its broker.
- `receiving/`: from an entry that the broker pushes to queued messages, each a `pulsar_message`.
- `acks/`: acknowledgements and redelivery, from a message to the broker's answer.
"""
