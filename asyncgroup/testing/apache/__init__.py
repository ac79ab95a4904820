"""The launcher of a real Apache Kafka: jars, nodes, cluster; `asyncgroup.testing.apache_kafka` is its public object."""
