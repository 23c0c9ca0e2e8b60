"""The tables' lives: see README.md."""
