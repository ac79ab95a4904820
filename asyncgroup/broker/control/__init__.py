"""What a cluster is made of and what a test does to it from outside: options, runtime, seeded topics, faults, history.

The part of faults and history that is not Kafka's is in `broker.traffic`.
"""
