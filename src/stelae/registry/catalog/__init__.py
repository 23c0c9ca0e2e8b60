"""The catalog in the metastore: its log of updates followed, its history read."""
