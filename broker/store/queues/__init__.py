"""Consume queues: which record of the log is message n of a queue."""
