"""Loads: frames of Spark become fragments or writes of a table."""
