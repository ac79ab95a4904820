"""A client's connection to a broker. It knows no topic.

- `server_connection`: frames, the handshake, recorded requests and injected faults, and answers with errors.
- `transaction_answers`: the answers to the commands of transactions, which errors share.
"""
