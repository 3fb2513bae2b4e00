"""Cluster files: topics, groups, users, rules and offsets of a cluster as one document.

``mqadmin cluster export`` writes one; ``cluster diff``, ``apply`` and ``import`` compare it with a
cluster and change the cluster. Everything here is pure but ``snapshot.py``, ``applying.py`` and
``file_text.py``.
"""
