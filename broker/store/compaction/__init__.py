"""The copies of a compaction topic's messages: per queue a log of its own, which loses old values.

The files are those of a Java broker.
"""
