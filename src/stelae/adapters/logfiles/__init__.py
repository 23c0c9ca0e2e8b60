"""Log files of a directory."""
