"""Settings that all property tests share."""

from hypothesis import settings

# A deadline per example would be a timing assertion, and machines that run several suites at once
# would fail it.
settings.register_profile("triomq", deadline=None)
settings.load_profile("triomq")
