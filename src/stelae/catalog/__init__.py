"""The versioned catalog: commands judged against one version make the entries of the next."""
