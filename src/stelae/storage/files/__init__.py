"""Fragments as the engine holds them: opened, cached, written."""
