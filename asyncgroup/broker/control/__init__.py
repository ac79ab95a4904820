"""What a test does to a cluster from outside: controls, seeded topics, injected faults, and the history of requests."""
