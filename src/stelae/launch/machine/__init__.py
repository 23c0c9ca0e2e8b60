"""A whole cluster on one machine: `stelae up` and `stelae down`."""
