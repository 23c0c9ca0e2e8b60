"""Replicas of tablets at work: what a shard does as a follower, and as a leader."""
