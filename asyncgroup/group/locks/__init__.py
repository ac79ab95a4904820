"""A group as a lock: `exclusive_producer` produces while its member owns the one partition that `assignor` gives to one member."""
