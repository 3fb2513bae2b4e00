"""Replication: slaves copy their master's log byte for byte, and sends may wait for them.

docs/architecture/replication.md has the state machines. SANS-IO: ``transfer`` (bytes <-> reports
and frames), ``master_link`` and ``slave_link`` (one connection, seen from either end), ``replicas``
(what each slave has, and which slaves a send waits for), ``rates``, ``connection_limits``. Trio:
``master``, ``slave``, ``link_socket``, ``replicated_durability``.
"""
