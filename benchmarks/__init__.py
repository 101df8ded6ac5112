"""Compare our code with other libraries, each in its own environment; time parts of ours."""
