"""The log of a shard: written, replayed, collected."""
