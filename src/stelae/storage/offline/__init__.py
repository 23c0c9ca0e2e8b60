"""The data of tables for jobs that work on the files themselves: the only part of `storage` that `spark` imports."""
