"""Many sorted sources become one sorted answer, in vectors."""
