"""A metastore on etcd."""
