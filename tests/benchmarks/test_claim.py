"""A benchmark whose folder has runs of other settings."""

import sys
from types import SimpleNamespace

import pytest

from benchmarks import continue_encoder, dial_cell, families, planted_faults, rate_transfer


class Trained(Exception):
    """Raised in place of the first training."""


def stop(*_):
    raise Trained


@pytest.mark.parametrize(
    ("benchmark", "more", "other"),
    [
        (rate_transfer, ["--rates=1"], ["--steps=300"]),
        (rate_transfer, ["--widths", "128", "1024"], ["--widths", "64", "128"]),
        (rate_transfer, [], ["--store=other"]),
        (families, ["--seeds=5"], ["--store=other"]),
        (continue_encoder, ["--seeds=5"], ["--field_minutes=5"]),
        (continue_encoder, [], ["--width=128"]),
        (dial_cell, [], ["--budget=5m"]),
        (planted_faults, ["--seeds=5"], ["--config.log_every_steps=20"]),
    ],
)
def test_finished_runs_of_other_settings_are_refused(benchmark, more, other, tmp_path, monkeypatch):
    """Runs may be added."""

    def run(*flags):
        source = "--english=x" if benchmark is continue_encoder else "--store=one"
        monkeypatch.setattr(sys, "argv", ["", source, f"--output={tmp_path / 'out'}", *flags])
        benchmark.main()

    begins = {
        continue_encoder: "build_stores",
        dial_cell: "choose",
        planted_faults: "subprocess.run",
    }
    place = f"{benchmark.__name__}.{begins.get(benchmark, 'train')}"
    monkeypatch.setattr(place, stop)
    monkeypatch.setattr(families, "open_store", lambda place: SimpleNamespace(digest=place))
    for flags in ([], more):
        with pytest.raises(Trained):
            run(*flags)
    with pytest.raises(SystemExit, match=r"error: --output=.* holds a benchmark with "):
        run(*other)
