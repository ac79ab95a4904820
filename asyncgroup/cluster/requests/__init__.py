"""Requests to coordinators, the controller, leaders and named nodes: one fan-out, one error table, a value for each key.

A request is a function over a ClusterClient. It says which node each key goes to (a route of `routes`), how a part of the keys
is sent to one node (`ask`), and what that node answers for each key. The rest is here once:

    keys ── locate ──▶ shards ── fan_out ──▶ Results by key ── Progress.apply ──▶ RequestAction ── repeat ──▶ the keys that are left
              ▲                                   │
              └───────────── forget ◀── LOOK_UP ──┘

- `actions`: the error table, code → action. Pure, as `results`: values and errors by key, merged over nodes and attempts.
- `routes`: by coordinator, controller, leader or node id; they send to one node, and forget one that was wrong.
- `repeat`: the loop of attempts and pauses, also for requests that have no keys. `time_limit`: deadlines. `budget`: those of a call of
  several requests.
- `fan_out`: all parts at the same time, then the attempts that are left.
- `unanswered`: a refusal that means that a lost request was executed.
- `offset_versions`: what versions of requests about committed offsets have; `topic_spread`: waits until all brokers know a topic.
- `list_offsets`, `topics`, `topic_pages`, `groups`, `group_offsets`, `configs`, `records`, `producers`,
  `transactions`, `brokers`, `replicas`, `acls`, `scram_users`, `quotas`: the requests, by what they are about.
"""
