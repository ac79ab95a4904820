"""Acknowledgements and redelivery, from a message to the broker's answer.

- `unacked`: what is not acknowledged; `pending_acks`: what is to be sent together; `ack_sender` sends it, again after failures.
- `redelivery`: of single messages (`negative_acks`) or of all (`epochs`).
"""
