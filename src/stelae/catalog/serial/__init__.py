"""Catalog objects as bytes, each with its type and the version of its serializer."""
