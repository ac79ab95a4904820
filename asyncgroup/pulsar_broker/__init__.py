"""An embedded Apache Pulsar: brokers that speak its protocol, in memory, for tests.

- `embedded`: EmbeddedPulsar, what a test opens. `node`: one broker; `namespaces`: the topics that there are, of all brokers.
- `traffic`: the history of requests, and injected faults. `server_connection`: a client's connection. `requests`: what is done for each command, by a table; `producer_requests` and
  `consumer_requests` have those of producers and consumers. `services`: what they need of a node. `errors`: the error that a request is answered with.
- `admin_server`: requests of the admin API, with the statistics of `admin_stats`.
- `topic`: a topic or partition. `topic_log`: its entries; `topic_producers`: its producers, their access modes and deduplication.
- `subscription`: the consumers that share a `cursor`, which is what they have acknowledged. `subscribed_consumer`: one of them.
- `dispatch_single`: who gets an entry in Exclusive and Failover subscriptions, `dispatch_shared`: in Shared and Key_Shared ones,
  there by `key_selectors`.
"""
