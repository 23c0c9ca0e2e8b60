"""Rooms wired together: see README.md."""
