"""The audit log: who asked a server for what, from where, and whether it was allowed.

``audit_entry.py`` has one entry, ``rotated_file.py`` the files, ``decision_log.py`` the queues
between doors and files. ``decision_notes.py`` is what the doors call.
"""
