"""Whole tables at once: compacted, exported, backed up, restored, verified, counted."""
