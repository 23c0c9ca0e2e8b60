"""The command line: `stelae --help`."""
