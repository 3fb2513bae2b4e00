"""Tables that take a batch once, however often it is run: one module for each kind."""
