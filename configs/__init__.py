"""Configurations; each file's get_config is the base configuration and its differences."""
