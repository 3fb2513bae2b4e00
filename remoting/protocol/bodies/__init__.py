"""One class for each JSON body, in modules by subject."""
