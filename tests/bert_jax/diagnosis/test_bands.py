"""Bands of earlier runs are read as they were written, and a run's last loss follows from them."""

import json
import math

import numpy as np
import pytest
from absl.testing import flagsaver

from bert_jax import config as config_lib
from bert_jax import report
from bert_jax.diagnosis import bands, forecast
from bert_jax.diagnosis.curves import Curves
from bert_jax.diagnosis.run_report import list_facts, render_page
from bert_jax.diagnosis.run_state import RunState
from bert_jax.runtime import goodput
from data_pipeline.io.small_files import DamagedFile

STEPS = 1000
TRAIN_N, HELDOUT_N = np.arange(20.0, STEPS + 1, 20), np.arange(100.0, STEPS + 1, 100)


def make_run(tmp_path, seed, shift, step=STEPS, noise=0.0, **changes):
    """A run whose loss falls late, as 4 + shift + a sigmoid; the last one is 4 + shift."""
    random = np.random.default_rng(seed)

    def lose(steps_N):
        return 4 + shift + 2 / (1 + np.exp((steps_N - 500) / 60))

    points = {}
    for split, steps_N in (("train", TRAIN_N), ("heldout", HELDOUT_N)):
        own_N = steps_N[steps_N <= step]
        values_N = lose(own_N) + noise * random.normal(size=len(own_N))
        points[split, "mlm_loss"] = (own_N, values_N)
        points[split, "mlm_accuracy"] = (own_N, 0 * own_N)
    own_N = points["heldout", "mlm_loss"][0]
    points["heldout", "unigram_mlm_loss"] = (own_N, 0 * own_N + 6.5)
    config = config_lib.Config(seed=seed, phases=(config_lib.Phase(32, STEPS),), objective="mlm")
    settings = json.loads(json.dumps(config_lib.flatten(config_lib.recorded(config)))) | changes
    return RunState(
        folder=tmp_path / f"run{seed}",
        state="finished" if step == STEPS else "stopped",
        settings=settings,
        steps=STEPS,
        devices="1 x cpu",
        store="abc",
        curves=Curves(points, step, (), 0),
        summary={"loss": 1.0} if step == STEPS else {},
        secs=dict.fromkeys(goodput.KINDS, 0.0),
        bad_steps=0,
        record={},
        began=0.0,
        manifest={},
        probe=[],
        missing=[],
    )


def make_band(tmp_path, shifts=(-0.1, 0.0, 0.1), noise=0.0):
    runs = [make_run(tmp_path, seed, shift, noise=noise) for seed, shift in enumerate(shifts)]
    return bands.build_band(runs, "own.band.json", "report --record")


def test_a_band_is_read_as_it_was_written(tmp_path):
    band = make_band(tmp_path)
    path = tmp_path / "own.band.json"
    path.write_bytes(bands.serialize_band(band))
    again = bands.read_band(path)
    assert (again.command, again.store, again.runs) == ("report --record", "abc", 3)
    assert again.matches(make_run(tmp_path, 7, 0.0).settings)
    table = again.summarize("heldout", "mlm_loss")
    last = [run_loss + 2 / (1 + math.exp(500 / 60)) for run_loss in (3.9, 4.0, 4.1)]
    assert table["steps"].tolist() == HELDOUT_N.tolist()
    assert table["mean"][-1] == pytest.approx(np.mean(last), abs=1e-5)
    assert table["sd"][-1] == pytest.approx(0.1, abs=1e-5)
    assert (table["min"][-1], table["max"][-1]) == pytest.approx((last[0], last[2]), abs=1e-5)


def test_settings_identify_a_band_and_seeds_places_and_defaults_do_not(tmp_path):
    band = make_band(tmp_path)
    settings = dict(make_run(tmp_path, 7, 0.0).settings)
    places = {"seed": 99, "data.random_seed": 5, "data.store": "elsewhere", "log_every_steps": 7}
    assert band.matches(settings | places)
    del settings["rtd_weight"]  # of an older record
    assert band.matches(settings)
    assert not band.matches(settings | {"rtd_weight": 49.0})
    assert not band.matches(settings | {"optim.learning_rate": 0.5})
    assert not band.matches({})


def test_runs_that_make_no_band_are_refused(tmp_path):
    run = make_run(tmp_path, 0, 0.0)
    other = make_run(tmp_path, 1, 0.0, **{"optim.learning_rate": 0.5})
    live = make_run(tmp_path, 1, 0.0, step=300)
    for runs, words in (
        ([run], "1 runs"),
        ([run, other], "optim.learning_rate=0.5"),
        ([run, live], "step 300 of 1,000"),
        ([run, run], "has the seeds of"),
    ):
        with pytest.raises(ValueError, match=words):
            bands.build_band(runs, "name", "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "no band of runs"),
        ({"version": 2}, "version 2"),
        ({"runs": 1}, "1 runs"),
        ({"runs": 4}, "4 rows"),
        ({"curves": {"test/mlm_loss": {}}}, "test/mlm_loss"),
        ({"curves": {"train/x": {"steps": [1, 1], "losses": [[1, 1]] * 3}}}, "rising"),
        ({"curves": {"train/x": {"steps": [1, 2000], "losses": [[1, 1]] * 3}}}, "rising"),
        ({"curves": {"train/x": {"steps": [1], "losses": [["1"]] * 3}}}, "no number"),
        ({"curves": {"train/x": {"steps": [1], "losses": [[math.nan]] * 3}}}, "no number"),
        ({"curves": {"train/x": {"steps": [], "losses": [[]] * 3}}}, "1 to 200"),
        ({"settings": []}, "settings"),
    ],
)
def test_a_damaged_band_is_refused(tmp_path, change, words):
    content = json.loads(bands.serialize_band(make_band(tmp_path)))
    path = tmp_path / "own.band.json"
    path.write_text(json.dumps(content | change))
    with pytest.raises(DamagedFile, match=words):
        bands.read_band(path)


def test_the_bands_of_the_package_are_whole_and_found_by_settings():
    paths = sorted(bands.FOLDER.glob(f"*{bands.SUFFIX}"))
    assert len(paths) >= 6
    for path in paths:
        band = bands.read_band(path)
        chosen = bands.find_band(dict(band.settings) | {"seed": 77}, band.store)
        assert chosen is not None and chosen.name == path.name
        assert bands.find_band(dict(band.settings) | {"model.hidden_size": 1}, band.store) is None


def test_the_end_is_that_of_the_band_moved_by_three_quarters_of_the_distance(tmp_path):
    band = make_band(tmp_path)
    run = make_run(tmp_path, 7, 0.08, step=400)
    guess = forecast.forecast("mlm", forecast.read_early(run, "mlm"), band)
    end = 4 + 2 / (1 + math.exp(500 / 60))
    assert guess.loss == pytest.approx(end + 0.75 * 0.08, abs=1e-4)
    # By hand: the rule leaves 0.25 of each shift; 2 degrees of 1% of the loss; Student's 0.9 of 4.
    squares = 2 * (0.01 * guess.loss) ** 2 + 2 * 0.025**2
    half = 1.533206 * math.sqrt(squares / 4 * (1 + 1 / 3))
    assert (guess.low, guess.high) == pytest.approx(
        (guess.loss - half, guess.loss + half), abs=1e-4
    )
    assert f"{guess.loss:.3f}" in dict(list_facts(run, band=band))["forecast"]
    html = render_page([run], bands=[band])
    assert html.count("<svg") == 1 and "the held-out loss of 3 earlier runs" in html


def test_a_run_of_another_config_is_shown_beside_no_band(tmp_path, monkeypatch, capsys):
    path = tmp_path / "own.band.json"
    path.write_bytes(bands.serialize_band(make_band(tmp_path)))
    own = make_run(tmp_path, 7, 0.0)
    other = make_run(tmp_path, 8, 0.0, **{"optim.learning_rate": 0.5})
    monkeypatch.setattr(report, "read_run", {own.folder: own, other.folder: other}.get)
    command = ["--band", str(path), f"--output={tmp_path / 'page.html'}"]
    with flagsaver.flagsaver():
        assert report.main([*command, str(other.folder), str(own.folder)]) == 0
    first, second = capsys.readouterr().out.split("run7: finished")
    assert "none of this config" in first and "3 runs of this config" not in first
    assert "3 runs of this config" in second and "earlier runs ended at 3.9" in second
    html = (tmp_path / "page.html").read_text()
    assert html.count("3 runs of this config") == html.count("none of this config") == 1
    with flagsaver.flagsaver():
        assert report.main([*command, str(other.folder)]) == 2
    assert "another config than" in capsys.readouterr().err


def test_the_unigram_line_of_the_last_phase_moves_the_forecast(tmp_path):
    band = make_band(tmp_path)
    early = forecast.read_early(make_run(tmp_path, 7, 0.0, step=400), "mlm")
    assert early.unigram == 6.5  # the run has one phase, and is in it
    first = forecast.forecast("mlm", early, band)
    harder = forecast.Early(early.step, early.steps, early.store, early.train, 6.6)
    assert forecast.forecast("mlm", harder, band).loss == pytest.approx(first.loss + 0.1)


def test_a_training_run_shows_its_forecast_at_held_out_lines_also_after_a_restart(tmp_path):
    band, printed = make_band(tmp_path), []
    forecaster = forecast.Forecaster(band, STEPS, "abc", {"mlm": 6.5}, printed.append)
    run = make_run(tmp_path, 7, 0.05)
    lines = [
        {"step": int(step), "split": split, "mlm_loss": float(loss)}
        for split in ("train", "heldout")
        for step, loss in zip(*run.curves.select(split, "mlm_loss"), strict=True)
    ]
    lines.sort(key=lambda line: line["step"])
    for line in lines:
        forecaster.add(line)
    assert len(printed) == 9  # held out at 100 to 900; the last line is the end itself
    early = forecast.read_early(make_run(tmp_path, 7, 0.05, step=400), "mlm")
    assert printed[3] == f"forecast: {forecast.forecast('mlm', early, band)}"
    again = forecast.Forecaster(band, STEPS, "abc", {"mlm": 6.5}, printed.append)
    again.restart([line for line in lines if line["step"] <= 380])
    for line in lines:
        if 380 < line["step"] <= 400:
            again.add(line)
    assert printed[9:] == [printed[3]]
    for line in lines:  # from here on unlike all runs of the band: said once
        if line["step"] > 400:
            again.add({**line, "mlm_loss": line["mlm_loss"] + 1.0})
    (reason,) = printed[10:]
    assert "far from" in reason


def test_what_cannot_be_known_is_not_predicted(tmp_path):
    band = make_band(tmp_path)
    run = make_run(tmp_path, 7, 0.0, step=400)
    early = forecast.read_early(run, "mlm")

    def explain(early, band, term="mlm"):
        with pytest.raises(forecast.NotKnown) as caught:
            forecast.forecast(term, early, band)
        return str(caught.value)

    early_run = forecast.read_early(make_run(tmp_path, 7, 0.0, step=80), "mlm")
    assert "a tenth of it" in explain(early_run, band)
    assert "without a band" in explain(early, None)
    assert "of the nsp loss" in explain(early, band, "nsp")
    far = forecast.read_early(make_run(tmp_path, 7, 1.0, step=400), "mlm")
    assert "far from" in explain(far, band)
    steps_N, values_N = early.train
    for store, train, words in (
        ("xyz", early.train, "another store"),
        ("", early.train, "another store"),
        ("abc", (steps_N[:3], values_N[:3]), "0 training lines"),
    ):
        assert words in explain(forecast.Early(400, STEPS, store, train, None), band)


def test_the_interval_covers_the_ends_of_new_runs(tmp_path):
    """Runs whose levels differ by 1%, some of it hidden by noise: 80% of ends at least."""
    random = np.random.default_rng(0)
    covered = 0
    for trial in range(60):
        shifts = random.normal(scale=0.04, size=4)
        band = make_band(tmp_path, shifts[:3], noise=0.02)
        full = make_run(tmp_path, 100 + trial, shifts[3], noise=0.02)
        early = forecast.read_early(make_run(tmp_path, 100 + trial, shifts[3], 400, 0.02), "mlm")
        guess = forecast.forecast("mlm", early, band)
        covered += guess.low <= full.curves.last("heldout", "mlm_loss") <= guess.high
    assert 48 <= covered <= 60
