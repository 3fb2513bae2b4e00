"""The Spark source: topics as DataFrames, streaming and batch, in pure Python.

``sources`` has the entry points for Spark; ``options``, ``columns`` and ``offset_options`` read
what users write; ``planning`` cuts a batch into tasks; ``driver_client`` asks name servers and
brokers from the driver; ``stream_reader`` and ``batch_reader`` use all of these; ``task_pull`` and
``decode`` run in the tasks, with blocking sockets and Arrow. ``sink`` writes topics, ``store``
reads store directories. Nothing here imports Trio.
"""
