"""What is common to groups of both protocols: `requests` and their results, and `interfaces` to the broker."""
