"""Fragments: immutable sorted Parquet files that stock readers understand and we can seek, probe and verify."""
