"""The Spark source: topics of a RocketMQ-compatible cluster as DataFrames, streaming and batch, in pure Python.

`source` is what Spark sees; `options`, `columns` and `offsets` hold what users write; `planning` cuts work into tasks; `cluster`
asks name servers and brokers from the driver; `stream_reader` and `batch_reader` tie these together; `pull` and `decode` run in
the tasks, with blocking sockets and Arrow.  Nothing here imports Trio.
"""
