"""What happens in a process, told as numbers: of masters and of shards."""
