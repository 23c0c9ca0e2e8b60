"""`stelae demo`."""
