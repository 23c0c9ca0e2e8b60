"""Reads of single rows."""
