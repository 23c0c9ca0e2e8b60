"""What was written and is in no file yet."""
