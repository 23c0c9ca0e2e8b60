"""What users give, row by row or in frames, becomes blocks of mutations."""
