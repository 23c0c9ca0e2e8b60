"""One connection to a peer: how it is found and dialled, and the requests that are open on it once it said hello."""
