"""The lease of a shard, as the shard itself has it."""
