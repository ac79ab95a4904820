"""Kafka's property names and other clients' configuration keys, and what they are called here.

- `reader` creates a configuration from Kafka's properties (`ConsumerConfig.from_properties`), `security` its security part.
- `names` maps each property to a key, or says why there is none; `ignored` lists properties without effect.
- `sarama_keys` is the same table for sarama's keys. `suggestions` proposes a key for an unknown one.
"""
