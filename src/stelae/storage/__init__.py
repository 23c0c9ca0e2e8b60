"""The data of one shard's tablets: log, memory, fragments, and what readers see of them."""
