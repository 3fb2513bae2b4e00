"""One class for each header of a request or response, in modules by subject."""
