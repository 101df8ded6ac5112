"""Predict the end of finished runs, each from the others of its config.

    python -m benchmarks.forecast RUN RUN RUN [RUN ...]

RUN is the workdir of a finished pre-training. Runs of one config on one store with different seeds
are a group; each run of a group of three or more is predicted from a band of the others, at shares
of its steps, with and without the unigram line of its last phase.
"""

import argparse
import math
import pathlib
from collections.abc import Sequence

import numpy as np

from bert_jax.diagnosis import bands, forecast
from bert_jax.diagnosis.run_state import RunState, read_run

SHARES = (0.1, 0.2, 1 / 3, 0.5, 0.7, 0.85)


def group_runs(runs: Sequence[RunState]) -> list[list[RunState]]:
    """Return the runs that can be a band, three or more together."""
    groups: list[list[RunState]] = []
    for run in runs:
        for group in groups:
            try:
                bands.build_band([*group, run], "group", "")
            except ValueError:
                continue
            group.append(run)
            break
        else:
            groups.append([run])
    return [group for group in groups if len(group) > 2]


def predict(run: RunState, band: bands.Band, term: str, share: float, unigram: bool) -> list[float]:
    """Return the relative error of a forecast, and 1 if the interval covers the end; [] if none."""
    last = run.curves.last("heldout", f"{term}_loss")
    steps_N, losses_N = run.curves.select("train", f"{term}_loss")
    step = math.floor(share * run.steps)
    seen_N = steps_N <= step
    line = run.curves.last("heldout", f"unigram_{term}_loss") if unigram else None
    early = forecast.Early(step, run.steps, run.store, (steps_N[seen_N], losses_N[seen_N]), line)
    try:
        guess = forecast.forecast(term, early, band)
    except forecast.NotKnown:
        return []
    return [guess.loss / last - 1, float(guess.low <= last <= guess.high)] if last else []


def main() -> None:
    """Print a line a share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=pathlib.Path)
    groups = group_runs([read_run(path) for path in parser.parse_args().runs])
    print(f"{len(groups)} configs, {sum(map(len, groups))} runs")
    for share in SHARES:
        for unigram in (True, False):
            results = [
                predict(run, bands.build_band([*group[:n], *group[n + 1 :]], "", ""), *rest)
                for group in groups
                for n, run in enumerate(group)
                for rest in ((term, share, unigram) for term in forecast.TERMS)
            ]
            errors_N, covered_N = np.asarray([pair for pair in results if pair]).T
            sizes_N = np.abs(errors_N)
            print(
                f"at {share:.2f}, unigram line {'known' if unigram else 'unknown'}: "
                f"{(sizes_N < 0.01).sum()} of {len(sizes_N)} within 1%, median "
                f"{np.median(sizes_N):.2%}, largest {sizes_N.max():.2%}, "
                f"covered {covered_N.mean():.0%}"
            )


if __name__ == "__main__":
    main()
