"""Verbs that work on whole tables, on Spark where it takes that."""
