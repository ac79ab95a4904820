"""The cluster's metadata: topics, configs, placement and leaders, users and quotas; the controller changes it."""
