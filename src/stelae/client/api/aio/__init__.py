"""The same classes for event loops."""
