"""Rules of consuming that clients and servers share: allocation, tag expressions, popped messages."""
