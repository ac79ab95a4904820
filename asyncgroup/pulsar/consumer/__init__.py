"""Consumers of Pulsar topics.

- `permits`: how many messages the broker may push. `pulsar_message`: what a program gets.
- `unacked` and `pending_acks`: acknowledgements, from a message to the broker's answer. `negative_acks` and `epochs`: redelivery.
- `chunk_assembly`: large values.
"""
