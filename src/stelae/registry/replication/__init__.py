"""What shards and their master say to each other about the replicas of tablets."""
