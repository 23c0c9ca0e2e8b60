"""The data pipeline on Spark."""
