"""The admin API (REST) of an embedded Pulsar, as far as test suites of clients use it.

- `server`: AdminServer, and which part has a request. `http`: the requests themselves.
- `topics`: topics and partitions, with their `subscriptions`; `messages`: single messages. `namespaces`: namespaces, with their `policies`.
- `schemas`: the schemas of topics. `stats`: statistics. `transactions`: open transactions.
"""
