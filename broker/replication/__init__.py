"""Master and slave: the log copied as it is, and how many copies a send waits for.  docs/replication.md has the state machines.

SANS-IO: ``transfer`` (bytes <-> reports and frames), ``master_link`` and ``slave_link`` (one connection, seen from either end), ``replicas`` (who has how much, and
whom a send waits for), ``pace``.  Trio: ``master``, ``slave``, ``waiting``.
"""
