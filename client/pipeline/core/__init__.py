"""What every part of the pipeline stands on: its specification, errors, and origins of rows."""
