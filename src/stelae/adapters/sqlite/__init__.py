"""A metastore in one SQLite file."""
