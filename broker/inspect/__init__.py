"""Looking at a store from outside, while no broker runs: ``mqstore verify`` and ``mqstore dump``.

Law: nothing here creates or changes a byte, not even a time of change; files are opened for reading only. Records, queue entries and index files are read by
the store's own code (``triomq.broker.store``), so there is one parser of each; what is added here are the comparisons that a running broker has no time for.
"""
