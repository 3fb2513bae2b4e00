"""The Raft consensus algorithm as a pure state machine: events in, effects out.

``settings``, ``configuration`` <- ``messages`` <- ``events``, ``log`` <- ``state`` <-
``leadership`` <- ``node``: see ``docs/architecture/raft.md``.
"""
