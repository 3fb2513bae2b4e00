"""Cluster files: topics, groups, users, rules and offsets of a cluster as one document.

``mqadmin cluster export`` writes one; ``cluster diff``, ``apply`` and ``import`` compare it with a
cluster and change the cluster. ``snapshot.py``, ``offset_steps.py`` and ``applying.py`` ask
brokers, ``file_text.py`` reads and writes files, and the rest is pure.
"""
