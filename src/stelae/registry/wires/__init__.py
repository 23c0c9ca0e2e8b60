"""One connection to a peer that has said hello, and the requests that are open on it."""
