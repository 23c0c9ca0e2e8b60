"""A shard at work: the lives of its tablets, and what each request gets in each state."""
