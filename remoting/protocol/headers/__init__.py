"""One class per request or response header, grouped by what the requests are about."""
