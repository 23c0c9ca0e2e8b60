"""Tablets with several replicas: who has them, and who leads."""
