"""Calls as steps, and the sessions that carry them out."""
