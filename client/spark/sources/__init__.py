"""The data sources that Spark loads by name."""
