"""What a change of one table needs: room for it, and that the servers hear of it."""
