"""What every test shares: the rules of CI, and the records of what a run proves."""

pytest_plugins = ("ci_rules", "compatibility_record", "feature_record")
