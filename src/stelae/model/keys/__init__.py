"""Keys as rows: order-preserving bytes, one key at a time (`scalar`) and in vectors (`vector`)."""
