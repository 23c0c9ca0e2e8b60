"""Replicas of tablets: the end of each tablet's log, as bytes, and what it follows from."""
