"""What the launchers of Apache Kafka and Apache Pulsar share: jars, child processes, ports, and a watchdog. POSIX only."""
