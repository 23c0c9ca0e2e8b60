"""Spark looks for modules whose names begin so, and finds `format("stelae")` here."""

from stelae.spark.source.source import StelaeSource as DefaultSource

__all__ = ["DefaultSource"]
