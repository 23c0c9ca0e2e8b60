"""Blocks are checked whole before any of one counts."""
