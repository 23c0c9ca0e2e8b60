"""Views of a metastore: a part of it, or one in which each transaction compares something more."""
