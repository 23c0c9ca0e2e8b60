"""What a driver needs whatever its job is: a session, Java, tasks, progress."""
