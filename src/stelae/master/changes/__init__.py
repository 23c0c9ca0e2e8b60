"""Changes of many tablets at one txn: led to their end, and asked for by users."""
