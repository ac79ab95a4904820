"""Consumers of Pulsar topics, as `config` configures them; `consumer_properties` has the names of Java, `foreign_names`
what methods and settings of other clients are called here.

- `topic_consumer`: what a program uses; `consumer_partitions`: a `pulsar_consumer` for each partition, and its `listener`.
  `partition_turns`: those of them that have messages. `reader`: a consumer whose subscription does not stay.
  `message_outcomes` acknowledges its messages, or has them delivered again; `consumer_parts` has what both share.
- `multi_topics_consumer`: of several topics, which `consumed_topics` has, or of those of a pattern: `topics_pattern`, `pattern_topics`,
  `topic_list_watcher`. `table_view`: the last value of each key.
- `registration` keeps it at its broker, with the request that `subscribing` makes; `seeking` moves the subscription, `backlog` finds its end.
- `receiver_queue` has what has arrived; `permits`: how many messages the broker may push.
- `arrivals`: from an entry to messages, each a `pulsar_message`; `chunk_assembly` puts large values together;
  `rejections`: what becomes of entries without a message.
- `unacked`, `pending_acks` and `ack_sender`: acknowledgements, from a message to the broker's answer. `transaction_acks`: those in transactions.
- `reports`: the events of entries and acknowledgements for hooks.
- `redelivery`, of single messages (`negative_acks`) or of all (`epochs`).
"""
