"""Administration: the ``Admin`` API, and what it computes for mqadmin and the console.

Nothing here prints: ``client/mqadmin`` is the program.
"""
