"""Bytes on the network: frames and messages, safe against any input."""
