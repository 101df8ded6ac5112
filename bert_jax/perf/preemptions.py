"""Expect what preemptions cost a run on spot chips: repeated steps, and starting again.

A preemption loses the steps since the last checkpoint, on average half the distance of two, and the
time to start again. Preemptions come at random, at the same mean rate at any time. Source: Daly
2006, "A higher order estimate of the optimum checkpoint interval for restart dumps", equation 14.
"""

import dataclasses
import math
from collections.abc import Sequence

# Hours between two preemptions of a slice, and seconds from one to the next step: means of 42
# preemptions of seven spot slices of v2 and v3, of 4 and 16 chips, in 677 hours of December 2022.
# Source: https://github.com/skypilot-org/skypilot/pull/1500, a table of 13 December 2022. Other
# chips, sizes, regions and days differ; Google publishes no rate.
PREEMPTION_HOURS = 16.1
RESTART_SECS = 685.0
# Assumed: the time in which devices wait for a save, as files are written beside the steps; and the
# bytes of a checkpoint that a host reads in a second.
SAVE_SECS = 2.0
RESTORE_BYTES_PER_SEC = 200e6
LONGEST = 10.0  # paid over kept time, from which a run does not belong on spot chips
_LARGEST_POWER = 700.0  # of e, within float64


@dataclasses.dataclass(frozen=True)
class Stretch:
    """A stretch of training between saves of equal distance."""

    secs: float  # of its steps
    save_every_secs: float


@dataclasses.dataclass(frozen=True)
class Expected:
    """What a run takes on spot chips, in expectation."""

    secs: float  # paid, over all attempts
    goodput: float  # share of them in steps whose result was kept
    preemptions: float
    preemption_hours: float  # mean time between two
    restart_secs: float  # from a preemption to the next step
    repeated_secs: float  # of steps done again after a preemption
    best_save_every_secs: float  # distance of saves at which least is lost


def expect(
    stretches: Sequence[Stretch], preemption_hours: float, restart_secs: float
) -> Expected | None:
    """Expect the paid time of a run that is preempted every so many hours.

    A preemption may fall into a save or a restart as well. Without preemptions the run would take
    the seconds of its stretches and SAVE_SECS for each save. None if it would take longer than that
    by a factor of LONGEST: preemptions then come faster than saves, and it hardly ever ends.
    """
    mean_secs = preemption_hours * 3600
    kept = sum(stretch.secs for stretch in stretches)
    saving = SAVE_SECS * sum(stretch.secs / stretch.save_every_secs for stretch in stretches)
    paid = 0.0
    for stretch in stretches:
        distance = (stretch.save_every_secs + SAVE_SECS) / mean_secs
        if distance + restart_secs / mean_secs > _LARGEST_POWER:
            return None
        each = mean_secs * math.exp(restart_secs / mean_secs) * math.expm1(distance)
        paid += stretch.secs / stretch.save_every_secs * each
    if paid > LONGEST * (kept + saving):
        return None
    preemptions = paid / mean_secs
    lost = paid - kept - saving
    return Expected(
        secs=paid,
        goodput=kept / paid,
        preemptions=preemptions,
        preemption_hours=preemption_hours,
        restart_secs=restart_secs,
        repeated_secs=max(0.0, lost / preemptions - restart_secs),
        best_save_every_secs=best_save_every_secs(preemption_hours),
    )


def best_save_every_secs(preemption_hours: float) -> float:
    """Return the distance of saves at which least is lost, sqrt(2 x save x mean time between).

    Source: Young 1974, "A first order approximation to the optimum checkpoint interval".
    """
    return math.sqrt(2 * SAVE_SECS * preemption_hours * 3600)


def sum_restart_secs(compile_secs: float, parameters: int) -> float:
    """Return the time from a preemption to the next step: a new slice, the checkpoint, a compile.

    A checkpoint has each parameter and two moments of it in float32.
    """
    return RESTART_SECS + compile_secs + 12 * parameters / RESTORE_BYTES_PER_SEC
