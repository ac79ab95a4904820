"""What the launchers of Apache Kafka and Apache Pulsar share: jars, child processes, ports, and a watchdog. POSIX only.

- `jar_download` keeps jars in a cache, `ivy` obtains them; `class_archive` makes Java start faster.
- `process` is a server as a child process, `starting` its start and `watchdog` its end with its parent; `options` of Java,
  `ports` and `properties_file` are for its configuration.
"""
