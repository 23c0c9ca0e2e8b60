"""Which master leads: its guard, its lease, and what it writes while it leads."""
