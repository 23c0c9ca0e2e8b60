"""Flushes, compactions, saved configs: chosen apart from being done."""
