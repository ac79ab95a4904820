"""The engine of a work queue over a subscription of Apache Pulsar.

- `source`: PulsarSource, which a user makes, and its check. `engine`: PulsarEngine, which opens its consumers.
- `partitions`: the partitions of a queue, each of which begins and is refused alone; `partition_consumers` creates their consumers.
- `queue_partition`: gives the messages of one partition to the queue, and the acknowledgements to the broker; `delivery_counts`: how often
  they were delivered before.
- `subscription_health`: what is wrong with the queue and its partitions.
- `copies`: what copies for retry and dead letter topics have, and `copy_writer`, which writes them; `copy_transactions`: with the acknowledgements.
- `broker_release`: which releases of Pulsar can do what a queue promises.
"""
