"""Administration: the `Admin` API (`admin.py`) and the program `mqadmin` (`cli.py`, `commands/`)."""
