"""Changes of a table that has tablets on several servers, at one txn: what is recorded of them, and what is asked."""
