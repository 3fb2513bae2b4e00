"""Files, the page cache and threads: what log, queues and keys need from the operating system.

All reads of a running store follow one idea: a read asks the page cache without waiting (``Reads``,
or the memory map of a segment if ``Residency`` says that its pages are there). A thread fetches
what is missing, and the system reads ``AHEAD_BYTES`` ahead of it: ``ColdFetch`` for requests,
``LogBlocks`` for recovery and the indexer, which read the log to its end. ``OpenFiles`` keeps the
descriptors of queue files; threads open files themselves, because the loop may close any of them.
"""
