"""Configurations; each file's get_config(arguments) is the base configuration and its differences."""
