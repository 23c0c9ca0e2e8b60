"""Verbs that run a cluster: its processes, and all of one on this machine."""
