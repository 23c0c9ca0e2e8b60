"""Threads, locks and disks for code that blocks, in the simulated world."""
