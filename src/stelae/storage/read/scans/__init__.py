"""Scans: of one group, of a tablet, of a table."""
