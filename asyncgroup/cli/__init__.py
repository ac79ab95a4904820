"""The command-line tools: `asyncgroup demo | broker | produce | consume | work | dlq`, and the operator's commands.

- `app` is the program. The commands are `broker`, `produce`, `consume`, `work`, `dlq`, `demo`, `completion`, `health`, and for operators
  `topics`, `configs`, `groups`, `offsets`, `transactions`, `acls`, `users`, `quotas`, `cluster`: each a file.
- Several commands: `common`, `connection_options`, `client_configs`, `telemetry_options`, `instants` (times), `lines` (of a file),
  `printing` (records), `offset_spans`, `extras` (the package rich).
- On Apache Pulsar: `pulsar_options` (the connection), `pulsar_reading` (`consume`), `pulsar_dead_letters` and `pulsar_replay` (`dlq`).
- Those of operators: `administration`, `advice` on errors, `tables`, `topic_arguments`, `group_names`; rows of tables in `topic_rows`,
  `group_rows`, `lag_rows`. Parts of `groups` are `group_lag` with `lag_rates`, and `group_reset`; of `cluster` it is `replicas`.
- `broker`: `broker_listeners`, `broker_settings` with `setting_values`, `broker_topics`, `commit_log`, and for Pulsar `embedded_pulsar` and
  `pulsar_settings`.
- `consume`: `start_positions`. `health`: `http_get`. `completion`: `completion_scripts`.
- `work`: `handler_loading` and `work_view`. `dlq`: `dead_letter_topic`, `dead_letter_rows`, `dead_letter_table`, `replaying`, and `dlq_replay`.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code, also if Ctrl-C comes while the commands are loaded: see `app.main`."""
    try:
        from asyncgroup.cli.app import main as run

        return run(arguments)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
