"""What several processes know together, on one metastore."""
