"""The cluster's metadata: topics, configs, placement and leaders, users and quotas; the controller changes it.

- `controller` makes each change, and sends it to the `journal`; on disk that is a `metadata_log`.
- What it changes: `topics`, `features`, `quotas`, `scram_users`, and by `config_repository` the configs that `broker_config_keys` (with
  `broker_config_table`) and `group_config_keys` describe.
- What it decides: the nodes of new partitions in `replicas`, and in `coordinator_election` those of coordinators.
"""
