"""A tablet as a value: its config, its state, and how one follows another."""
