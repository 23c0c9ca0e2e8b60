"""The far side of a connection: requests of other processes, answered by the store."""
