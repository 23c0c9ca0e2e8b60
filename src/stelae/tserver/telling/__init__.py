"""What happens in a server, told: events as numbers, and troubles in words."""
