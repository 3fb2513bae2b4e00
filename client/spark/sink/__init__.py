"""The Spark sink: rows of DataFrames become messages.

``sink_options`` and ``sink_columns`` check what users write; ``outgoing`` turns rows into messages
and packs them into batches; ``delivery`` sends batches over blocking sockets until each is
acknowledged; ``writer`` has the classes that Spark calls. Nothing here imports Trio.
"""
