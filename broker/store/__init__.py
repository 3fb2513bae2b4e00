"""The store: one commit log for all topics, and everything that is derived from it.

Law: the log is the only truth. Consume queues and the key index are derived from it, each watermark
is an integer that says how far a step of the work has come, and state changes only between
checkpoints of the one loop, so there are no locks. The files are RocketMQ's own, byte for byte.

``open_store`` (opening.py) is the way in; nothing here knows request codes or sockets. Imports go
one way: ``core`` (config, errors, draft, numbering, watermark, …) <- ``io`` <- ``queues`` <-
``keys``, ``log`` <- ``reading``, ``indexing`` <- ``compaction``, ``follow`` <- the modules of this
folder <- store.py <- opening.py.
"""
