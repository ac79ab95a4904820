"""One Kafka cluster: connections by purpose, metadata, leaders, coordinators, backoff.

`cluster` keeps the metadata (`metadata`, pure) fresh by `single_flight`, on top of `network_client`, which sends requests to a
node or, by `lookup`, to whichever answers first; `coordinators` remembers who coordinates what. `lanes` holds the
connections by node and purpose: one is made by `connecting` (addresses and TLS by `opening`, SASL by `authentication` and
`scram`) and lives in `connection`, on the frames of `framing`.

What sarama's Client (`client.go`) offers is found here:

| sarama | asyncgroup |
|---|---|
| Config, Close, Closed | `cluster.config`, `aclose()`, `is_open` |
| Brokers, Broker, Controller | `view.brokers`, `view.controller_id` |
| Topics | `await all_topics()`; those in use in `view.topics` |
| Partitions, WritablePartitions | `await partitions(topic)`; `view.topics[topic].numbers`, `.writable` |
| Leader, LeaderAndEpoch | `await leader(tp)`; `view.partition(topic, partition).leader`, `.leader_epoch` |
| Replicas, InSyncReplicas, OfflineReplicas | `.replicas`, `.isr`, `.offline_replicas` of the same |
| RefreshMetadata, RefreshController, RefreshBrokers | `await refresh()`; bootstrap addresses are gone back to by themselves |
| GetOffset | `Consumer.partition(…, offset)`: a number, a time, earliest or latest |
| Coordinator, RefreshCoordinator | `await coordinators.find(group)`, `coordinators.mark_unknown(group)` |
| TransactionCoordinator, RefreshTransactionCoordinator | the same with `kind=TRANSACTION` |
| LeastLoadedBroker | `await request_any(…)` asks it, and the next one if it is silent |
"""

from asyncgroup.cluster.cluster import Cluster, as_cluster

__all__ = ["Cluster", "as_cluster"]
