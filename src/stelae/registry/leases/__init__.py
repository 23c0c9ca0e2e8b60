"""Leases of masters and shards: how they are held and seen; how long shards answer, and up to which time."""
