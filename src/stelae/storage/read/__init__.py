"""What a reader asks, and how it is answered from a tablet."""
