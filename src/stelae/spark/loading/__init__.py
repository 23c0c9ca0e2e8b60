"""Frames into tables."""
