"""What users hold: their values become blocks of mutations, and what was read becomes their rows and frames."""
