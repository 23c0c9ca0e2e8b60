"""A store that another process has, over connections to it."""
