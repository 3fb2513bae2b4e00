"""Filters of consumer groups: expressions over a message's properties, compiled, remembered, evaluated.  Pure but for the table's file."""
