"""Reads: a table at one snapshot becomes a frame of Spark."""
