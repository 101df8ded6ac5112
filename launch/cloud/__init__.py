"""Create, watch and delete TPU slices on Google Cloud, from a laptop's Python 3.11 alone."""
