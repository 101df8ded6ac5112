"""Print the newest complete step of a workdir, a folder or an address; -1 where there is none."""

import sys

from bert_jax.checkpoint.directory import find_steps, make_absolute

if __name__ == "__main__":
    print(max(find_steps(make_absolute(sys.argv[1]) / "checkpoints"), default=-1))
