"""Compaction: which fragments to rewrite together, and the rewriting. Choosing is apart from doing."""
