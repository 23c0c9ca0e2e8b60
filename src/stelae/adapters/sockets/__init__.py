"""Connections over Unix sockets."""
