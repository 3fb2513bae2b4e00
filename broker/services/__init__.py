"""State of the broker beside the log, each kind with one owner.

Services know nothing of request codes or wire headers, except those that send requests of their own
(``registration``, ``remote_sender``). ``broker/wiring.py`` gives each what it needs.
"""
