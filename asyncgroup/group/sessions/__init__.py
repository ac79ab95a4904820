"""Sessions of a group member, from setup to cleanup.

- What a handler sees: `handler`, `session`, `claim`, `threads` (what a function of `in_thread` gets). Session and Claim show
  what it may call; their `_inner` is for the package.
- `life` is the story of a session from top to bottom. `state` says why it ends, and its ClaimSet what an assignment revokes
  and adds; `claims` starts and revokes them, `commits` commits by itself; `handler_calls` runs the handler's methods, with
  the deadlines of `end_limits` and the tasks of `handler_tasks`.
- `starts` and `start_lookups` find where claims begin; the ClaimSource in `claim_source` makes them, and is kept across
  sessions. `topic_watch` notices changes of the topics.
"""
