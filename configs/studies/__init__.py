"""Define a study in each file: get_config returns its rows."""
