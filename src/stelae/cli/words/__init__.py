"""What is typed on a command line, as values: tables, keys, bounds, times, values."""
