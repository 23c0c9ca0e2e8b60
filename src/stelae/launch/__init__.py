"""The real world: rooms wired to real adapters, from what a user configured."""
