"""Blob stores: a directory, an object store."""
