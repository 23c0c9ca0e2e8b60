"""Bytes at rest, all with a format version: blocks of mutations, log segments, fragments."""
