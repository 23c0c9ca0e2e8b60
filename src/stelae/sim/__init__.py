"""The simulated world: clocks, randomness, schedules, disks and object stores that fail on purpose, and repeat."""
