"""Studies: one file a comparison."""
