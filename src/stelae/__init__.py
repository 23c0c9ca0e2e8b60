"""Stelae: a tablet store for Python and Spark."""

__version__ = "0.1.0.dev0"
