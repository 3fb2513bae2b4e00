"""POP on the consumer's side: messages of any queue, each hidden for its invisible time.

Pure: ``popped_records``, ``durations``, ``lease_times``, ``hold_limit``, ``source_turns``.
``docs/sdk/pop.md`` has the user's side, ``docs/architecture/pop.md`` the broker's.
"""
