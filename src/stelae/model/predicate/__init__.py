"""Scan predicates: one language with two faces, Python expressions and a text that parses and prints back the same."""
