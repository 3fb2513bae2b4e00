"""The send path: from a send request to records in the log. Start reading at ``pipeline.py``."""
