"""``mqadmin bench``: load with percentiles."""
