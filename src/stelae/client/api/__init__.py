"""The classes users hold."""
