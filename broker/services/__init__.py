"""State of the broker beside the log, each kind with its one owner: tables, groups, held pulls, locks, registration, statistics.

Services know nothing of request codes or wire headers; they meet each other only in ``broker/app.py``.
"""
