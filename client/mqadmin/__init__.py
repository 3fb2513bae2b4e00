"""mqadmin, the command line: no other package imports it."""
