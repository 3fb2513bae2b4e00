"""Administration: the ``Admin`` API, and the program ``mqadmin`` (``cli.py``, ``commands/``)."""
