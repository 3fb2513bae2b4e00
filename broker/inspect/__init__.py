"""Inspect a store while no broker runs: ``mqstore verify`` and ``mqstore dump``.

Nothing here creates or changes a byte, not even a modification time: files are opened for reading
only. The store's own code (``triomq.broker.store``) reads records, queue entries and index files,
so there is one parser of each; this package adds the comparisons that a running broker has no time
for.
"""
