"""The picture of a run says what its metrics.jsonl says, and is there or not there as a whole."""

import dataclasses
import json
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib import image

from bert_jax.config import Config, OptimConfig, Phase
from bert_jax.logging import plots
from bert_jax.train_step.schedule import render_rates_as_text, sample_rates

PHASES = (Phase(seq_len=32, steps=60), Phase(seq_len=64, steps=40))


def lines_of_run(last_step, every_steps=10, terms=("mlm", "nsp")):
    """Metrics as the loop writes them: train every so many steps, held-out every 20."""
    rng = np.random.default_rng(7)
    lines = []
    for step in range(every_steps, last_step + 1, every_steps):
        numbers = {}
        for term in terms:
            numbers |= {f"{term}_loss": 9.0 - rng.random(), f"{term}_accuracy": rng.random()}
        loss = {"loss": sum(numbers[f"{term}_loss"] for term in terms)}
        rates = {"grad_norm": 1.0, "learning_rate": 1e-4, "sequences_per_sec": 90.0 + rng.random()}
        lines.append({"step": step, "split": "train"} | loss | numbers | rates)
        if step % 20 == 0:
            perplexities = {f"{term}_perplexity": 5.0 for term in terms}
            baselines = {
                "unigram_mlm_loss": 7.0 if step <= 60 else 6.5,
                "majority_nsp_accuracy": 0.52,
                "uniform_mlm_loss": 9.0,
                "ngram_mlm_loss": 6.4,
            }
            heldout = {name: value + 0.01 for name, value in numbers.items()}
            lines.append(
                {"step": step, "split": "heldout"} | loss | heldout | perplexities | baselines
            )
    return lines


def write(workdir, lines, ending=""):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (workdir / "metrics.jsonl").write_text(text + ending)


def panels_of(picture):
    return {ax.get_label(): ax for ax in picture.axes}


def draw(lines, schedule=None):
    return panels_of(plots.make_figure(lines, PHASES, schedule))


def curves_of(ax):
    """Label -> [steps, values] of each curve; the lines where phases begin have no label."""
    return {
        line.get_label(): np.stack(line.get_data())
        for line in ax.lines
        if not line.get_label().startswith("_")
    }


def test_the_rate_is_drawn_as_it_is_scheduled_unless_it_was_another():
    lines = [line | {"learning_rate": 0.5} for line in lines_of_run(60, every_steps=30)]
    steps = np.arange(1, 101)
    rates = np.where(steps < 15, 1.0, 0.5)  # a bend that no logged step shows
    drawn = curves_of(draw(lines, (steps, rates))["learning_rate"])["train"]
    np.testing.assert_array_equal(drawn, [steps[:60], rates[:60]])
    ax = draw(lines_of_run(60), (steps, np.full(100, 3e-4)))["learning_rate"]
    assert set(curves_of(ax)["train"][1]) == {1e-4}  # as it was logged


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values", "least", "inside"),
    [
        ("nsp_loss", (0.690, 0.695), 0.5, (0.0, 9.0)),
        ("nsp_loss", (0.001, 0.002), 0.5, (0.0, 9.0)),
        ("nsp_accuracy", (0.515, 0.520), 0.2, (0.0, 1.0)),
        ("nsp_accuracy", (0.995, 0.999), 0.2, (0.0, 1.01)),
        ("nsp_accuracy", (0.0, 0.001), 0.2, (-0.01, 1.0)),
        ("mlm_loss", (2.0, 8.0), 6.0, (0.0, 9.0)),
    ],
)
def test_an_axis_does_not_zoom_on_noise(name, values, least, inside):
    lines = [
        {"step": step, "split": "train", "nsp_loss": 1.0, "mlm_loss": 1.0, "mlm_accuracy": 0.0}
        | {"nsp_accuracy": 0.5, name: values[step % 2]}
        for step in range(1, 9)
    ]
    low, high = draw(lines)[name].get_ylim()
    assert high - low >= least - 1e-9
    assert inside[0] <= low <= values[0] and values[1] <= high <= inside[1]


def texts_of(ax):
    return [text.get_text() for text in ax.texts]


def test_each_curve_is_its_metric():
    lines = lines_of_run(100)
    panels = draw(lines)
    assert list(panels) == [
        "mlm_loss",
        "mlm_accuracy",
        "nsp_loss",
        "nsp_accuracy",
        "learning_rate",
        "sequences_per_sec",
    ]
    for name, ax in panels.items():
        for split, label in (("train", "train"), ("heldout", "held-out")):
            expected = [
                (line["step"], line[name])
                for line in lines
                if line["split"] == split and name in line
            ]
            drawn = curves_of(ax).get(label, np.zeros((2, 0)))
            np.testing.assert_array_equal(drawn.T, np.asarray(expected).reshape(-1, 2))


def test_the_last_heldout_value_and_the_baseline_are_written():
    lines = lines_of_run(100)
    panels = draw(lines)
    last = lines[-1]
    assert f"{last['mlm_loss']:.3f}" in texts_of(panels["mlm_loss"])
    for text in ("ln V\n9.000", "unigram\n6.500", "n-gram\n6.400"):
        assert text in texts_of(panels["mlm_loss"])
    heights = sorted(text.xy[1] for text in panels["mlm_loss"].texts if text.xy[0] == 1.0)
    assert len(heights) == 4 and np.diff(heights).min() >= plots.APART - 1e-9
    assert f"{last['nsp_accuracy']:.3f}" in texts_of(panels["nsp_accuracy"])
    assert "majority\n0.520" in texts_of(panels["nsp_accuracy"])
    assert texts_of(panels["nsp_loss"]) == [f"{last['nsp_loss']:.3f}"]


def test_a_baseline_holds_for_its_phase():
    panels = draw(lines_of_run(90))
    lines = [line for line in panels["mlm_loss"].lines if line.get_label() == "baseline"]
    line = lines[1]  # of ln V, unigram and n-gram
    assert len(lines) == 3
    assert line.get_drawstyle() == "steps-pre"  # between two points: the value of the later one
    steps, values = line.get_data()
    for at, expected in ((1, 7.0), (60, 7.0), (61, 6.5), (90, 6.5)):
        assert values[np.searchsorted(steps, at)] == expected
    assert (steps[0], steps[-1]) == (0, 90)
    assert "baseline" not in curves_of(panels["mlm_accuracy"])


def test_labels_move_as_little_as_keeps_them_apart():
    assert plots.spread([0.1, 0.5, 0.9], 0.2) == [0.1, 0.5, 0.9]
    moved = plots.spread([0.1, 0.5, 0.52, 0.9], 0.2)
    np.testing.assert_allclose(moved, [0.1, 0.41, 0.61, 0.9])
    pushed = plots.spread([0.3, 0.5, 0.51, 0.52], 0.2)  # all four around their mean
    np.testing.assert_allclose(pushed, 0.4575 + 0.2 * (np.arange(4) - 1.5))
    assert plots.spread([], 0.2) == []


@pytest.mark.parametrize(
    ("last_step", "begins", "labels"),
    [
        (100, [60], ["length 32", "length 64"]),
        (70, [60], ["length 32", "64"]),
        (60, [], []),
    ],
)
def test_phases_are_marked_with_their_length(last_step, begins, labels):
    panels = draw(lines_of_run(last_step))
    for ax in panels.values():
        marks = [line for line in ax.lines if line.get_label().startswith("_")]
        assert [line.get_xdata()[0] for line in marks] == begins
    assert [t for t in texts_of(panels["mlm_accuracy"]) if not t.startswith("0.")] == labels
    assert not [t for t in texts_of(panels["learning_rate"]) if t]


def test_a_task_has_the_panels_of_its_terms():
    lines = [
        {"step": 1, "split": "train", "task_loss": 2.0, "learning_rate": 1e-5},
        {"step": 2, "split": "heldout", "dev_loss": 1.5, "dev_pearson": 0.4},
    ]
    drawn = draw(lines)
    assert list(drawn) == ["task_loss", "dev_loss", "dev_pearson", "learning_rate"]
    assert all(ax.get_title(loc="left") for ax in drawn.values())
    assert "baseline" not in curves_of(drawn["task_loss"])


def test_the_legend_names_what_is_drawn_and_where_the_run_is():
    def legend(lines):
        (found,) = plots.make_figure(lines, PHASES).legends
        return [text.get_text() for text in found.get_texts()], found.get_title().get_text()

    assert legend(lines_of_run(60)) == (
        ["train", "held-out", "baseline"],
        "Step 60 of 100, sequences of 32",
    )
    assert legend(lines_of_run(70))[1] == "Step 70 of 100, sequences of 64"
    assert legend(lines_of_run(10))[0] == ["train"]


def test_a_long_curve_is_thinned_to_means_of_neighbors():
    count = 1700 * plots.MAX_POINTS + 13
    values = np.random.default_rng(5).random(count)
    steps, means, lows, highs = plots.thin((np.arange(1.0, count + 1), values))
    assert len(steps) == plots.MAX_POINTS
    assert (steps[0], means[0], steps[-1]) == (1, values[0], count)
    begin = 0
    for step, mean, low, high in zip(steps.astype(int), means, lows, highs, strict=True):
        group = values[begin:step]
        assert (low, high) == (group.min(), group.max())
        assert mean == pytest.approx(group.mean())
        begin = step


@pytest.mark.parametrize("count", [1, 2, 3, plots.MAX_POINTS])
def test_a_short_curve_stays_as_it_is(count):
    points = (np.arange(count) * 3.0, np.random.default_rng(5).random(count))
    for drawn, expected in zip(plots.thin(points), (points[0], *3 * [points[1]]), strict=True):
        np.testing.assert_array_equal(drawn, expected)


def test_long_runs_have_bounded_curves_and_show_their_range():
    lines = lines_of_run(40_000, every_steps=10)
    picture = plots.make_figure(lines, (Phase(32, 1_000_000),))
    assert [text.get_text() for text in picture.legends[0].get_texts()] == [
        "train",
        "train, lowest to highest",
        "held-out",
        "baseline",
    ]
    ax = panels_of(picture)["mlm_loss"]
    assert curves_of(ax)["train"].shape[1] == plots.MAX_POINTS
    (band,) = ax.collections
    of_train = [line["mlm_loss"] for line in lines if line["split"] == "train"]
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (min(of_train), max(of_train))


def test_values_that_are_not_finite_are_left_out():
    lines = lines_of_run(40)
    lines[0]["mlm_loss"] = float("nan")
    lines[-1]["mlm_loss"] = float("inf")
    drawn = curves_of(draw(lines)["mlm_loss"])
    assert drawn["train"].shape[1] == 3
    assert drawn["held-out"].shape[1] == 1


@pytest.mark.slow
def test_the_file_is_a_picture_that_settings_of_the_machine_do_not_change(tmp_path):
    write(tmp_path, lines_of_run(100))
    assert plots.draw_curves(tmp_path, PHASES) == tmp_path / "curves.png"
    picture = (tmp_path / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = np.frombuffer(picture[16:24], ">u4")
    assert (width, height) == (1350, 1065)
    assert 10_000 < len(picture) < 500_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "metrics.jsonl"]
    with matplotlib.rc_context({"font.size": 20.0, "savefig.dpi": 30, "axes.grid": False}):
        before = dict(matplotlib.rcParams)
        plots.draw_curves(tmp_path, PHASES)
        assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "curves.png").read_bytes() == picture


@pytest.mark.parametrize("text", [None, "", '{"step": 10, "sp'])
def test_nothing_is_drawn_before_the_first_metrics(tmp_path, text):
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text)
    assert plots.draw_curves(tmp_path, PHASES) is None
    assert not (tmp_path / "curves.png").exists()


@pytest.mark.slow
def test_it_says_nothing_and_needs_no_screen_nor_home(tmp_path):
    """A pod's home may be read-only, of which matplotlib would tell."""
    write(tmp_path, lines_of_run(20))
    program = (
        "import pathlib, sys\n"
        "from bert_jax.logging import plots as curves\n"
        "from bert_jax.config import Phase\n"
        f"curves.draw_curves(pathlib.Path({str(tmp_path)!r}), [Phase(32, 60)])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    home = {"MPLCONFIGDIR": "/proc/nowhere", "HOME": "/proc/nowhere", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], env=home, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "curves.png").exists()


RESTARTED = (
    Phase(seq_len=16, steps=700),
    Phase(seq_len=32, steps=300, restart_learning_rate=0.5, restart_warmup_steps=30),
)
RATES_OF = Config(phases=RESTARTED, optim=OptimConfig(learning_rate=1.0, warmup_steps=70))


def rate(step: int) -> float:
    """Google's schedule: up over the warm-up, then down as if there had been none."""
    first, steps, peak, warmup = (0, 700, 1.0, 70) if step < 700 else (700, 300, 0.5, 30)
    done = step - first
    return peak * done / warmup if done < warmup else peak * (1 - done / steps)


@pytest.mark.slow
def test_rates_are_those_of_the_schedule_and_every_bend_is_among_them():
    steps, rates = sample_rates(RATES_OF, most=11)
    expected = [rate(int(step)) for step in steps]
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-7)
    assert {0, 69, 70, 699, 700, 729, 730, 999} <= set(steps.tolist())
    assert len(steps) < 25


@pytest.mark.slow
def test_letters_rise_and_fall_with_the_rate():
    first = dataclasses.replace(RATES_OF, phases=RESTARTED[:1])
    lines = render_rates_as_text(first, width=70, height=3)
    assert [len(line) for line in lines] == [70, 70, 70]
    heights = [sum(" ▁▂▃▄▅▆▇█".index(line[column]) for line in lines) for column in range(70)]
    expected = [24 * rate(10 * column + 5) for column in range(70)]
    highest = max(expected)
    np.testing.assert_allclose(heights, 24 * np.array(expected) / highest, atol=1.6)


@pytest.mark.slow
def test_a_picture_of_it(tmp_path):
    path = tmp_path / "rate.png"
    plots.draw_rates(RATES_OF, path)
    height, width, _ = image.imread(path).shape
    assert (height, width) == (pytest.approx(420, abs=2), pytest.approx(1080, abs=2))
