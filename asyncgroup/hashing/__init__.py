"""Hash functions of keys, and the ranges of hashes that a consumer handles.

`murmur2` is that of Kafka's default partitioner, `key_ranges` has Pulsar's Murmur3 and its ranges, `java_string` the hash of
keys that Pulsar's producers use.
"""
