"""What a master and a shard can be asked: operations, their values, and the same as messages."""
