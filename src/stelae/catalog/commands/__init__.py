"""Commands: what can be asked of a catalog, each judged against the catalog it meets."""
