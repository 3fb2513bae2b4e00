"""The batch source ``rocketmq-store``: a store directory read without a broker.

The consume queues say which messages a broker serves, and where in the log their records lie.
``stored_queue`` reads their entries, ``log_files`` the records, ``served_topics`` what the broker
lets clients read, ``stopped`` whether a broker may still write. ``store_planning`` cuts the log
into pieces, ``store_task`` reads the records of one piece in the order of the log, and ``decode``
of the package above makes columns of them.
"""
