"""What an embedded Pulsar is made of, and what a test sees and does from outside.

- `options` are what a user sets; `runtime` creates the brokers, the topics and the rest from them; `policy_timer`: when policies are
  applied.
- What tests use: `views` of brokers, topics, subscriptions and transactions; `stored_messages`: the messages of a topic, decoded;
  `seeding`: messages without a client.
"""
