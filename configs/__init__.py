"""Define a run in each file: get_config returns the base config with its differences."""
