"""What goes wrong in a server, told in words: for writers, and as events."""
