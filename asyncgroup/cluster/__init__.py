"""One Kafka cluster: connections by purpose, metadata, leaders, coordinators, backoff."""

from asyncgroup.cluster.cluster import Cluster

__all__ = ["Cluster"]
