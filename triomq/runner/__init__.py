"""The console script ``triomq``: consumers of every interface from the command line."""
