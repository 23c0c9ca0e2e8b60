"""A store that several shards have, each some of the rows, over connections to all of them."""
