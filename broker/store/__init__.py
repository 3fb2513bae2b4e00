"""The store: one commit log for all topics, and everything that can be derived from it.

Law: the log is the only truth. Consume queues and the key index are derived from it, each watermark is an integer that says how far something has come,
and state changes only between checkpoints of the one loop, so there are no locks. The files are RocketMQ's own, byte for byte.

``open_store`` (store.py) is the way in; nothing here knows request codes or sockets.
"""
