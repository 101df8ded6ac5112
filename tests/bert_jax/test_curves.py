"""The picture of a run says what its metrics.jsonl says, and is there or not there as a whole."""

import json
import subprocess
import sys

import matplotlib
import numpy as np
import pytest

from bert_jax import curves
from bert_jax.config import Phase
from bert_jax.record_files import read_lines

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


def curves_of(ax):
    """Label -> [steps, values] of each curve; the lines where phases begin have no label."""
    return {
        line.get_label(): np.stack(line.get_data())
        for line in ax.lines
        if not line.get_label().startswith("_")
    }


def test_the_rate_is_drawn_as_it_is_scheduled_between_the_logged_points_too():
    lines = [line | {"learning_rate": 0.5} for line in lines_of_run(60, every_steps=30)]
    steps = np.arange(1, 101)
    rates = np.where(steps < 15, 1.0, 0.5)  # a bend that no logged step shows
    ax = panels_of(curves.figure(lines, PHASES, (steps, rates)))["learning_rate"]
    drawn = curves_of(ax)["train"]
    np.testing.assert_array_equal(drawn, [steps[:60], rates[:60]])


def test_a_rate_that_was_another_is_drawn_as_it_was_logged():
    lines = lines_of_run(60)  # of 1e-4
    steps = np.arange(1, 101)
    ax = panels_of(curves.figure(lines, PHASES, (steps, np.full(100, 3e-4))))["learning_rate"]
    assert set(curves_of(ax)["train"][1]) == {1e-4}


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
    low, high = panels_of(curves.figure(lines, PHASES))[name].get_ylim()
    assert high - low >= least - 1e-9
    assert inside[0] <= low <= values[0] and values[1] <= high <= inside[1]


def texts_of(ax):
    return [text.get_text() for text in ax.texts]


def test_each_curve_is_its_metric():
    lines = lines_of_run(100)
    panels = panels_of(curves.figure(lines, PHASES))
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
    panels = panels_of(curves.figure(lines, PHASES))
    last = lines[-1]
    assert f"{last['mlm_loss']:.3f}" in texts_of(panels["mlm_loss"])
    assert "unigram\n6.500" in texts_of(panels["mlm_loss"])
    assert f"{last['nsp_accuracy']:.3f}" in texts_of(panels["nsp_accuracy"])
    assert "majority\n0.520" in texts_of(panels["nsp_accuracy"])
    assert texts_of(panels["nsp_loss"]) == [f"{last['nsp_loss']:.3f}"]


def test_a_baseline_holds_for_its_phase():
    panels = panels_of(curves.figure(lines_of_run(90), PHASES))
    (line,) = [line for line in panels["mlm_loss"].lines if line.get_label() == "baseline"]
    assert line.get_drawstyle() == "steps-pre"  # between two points: the value of the later one
    steps, values = line.get_data()
    for at, expected in ((1, 7.0), (60, 7.0), (61, 6.5), (90, 6.5)):
        assert values[np.searchsorted(steps, at)] == expected
    assert (steps[0], steps[-1]) == (0, 90)
    assert "baseline" not in curves_of(panels["mlm_accuracy"])


def test_values_near_each_other_are_written_apart():
    lines = lines_of_run(20)
    lines[-1]["nsp_accuracy"] = lines[-1]["majority_nsp_accuracy"]
    texts = panels_of(curves.figure(lines, PHASES))["nsp_accuracy"].texts
    heights = [text.xy[1] for text in texts if "0.520" in text.get_text()]
    assert len(heights) == 2
    assert abs(heights[0] - heights[1]) > 0.15


@pytest.mark.parametrize(
    ("last_step", "begins", "labels"),
    [
        (100, [60], ["length 32", "length 64"]),
        (70, [60], ["length 32", "64"]),
        (60, [], []),
    ],
)
def test_phases_are_marked_with_their_length(last_step, begins, labels):
    panels = panels_of(curves.figure(lines_of_run(last_step), PHASES))
    for ax in panels.values():
        marks = [line for line in ax.lines if line.get_label().startswith("_")]
        assert [line.get_xdata()[0] for line in marks] == begins
    assert [t for t in texts_of(panels["mlm_accuracy"]) if not t.startswith("0.")] == labels
    assert not [t for t in texts_of(panels["learning_rate"]) if t]


@pytest.mark.parametrize("term", ["mlm", "next_word"])
def test_another_objective_has_the_panels_of_its_terms(term):
    picture = curves.figure(lines_of_run(40, terms=(term,)), PHASES)
    panels = panels_of(picture)
    assert list(panels) == [
        f"{term}_loss",
        f"{term}_accuracy",
        "learning_rate",
        "sequences_per_sec",
    ]
    assert ("baseline" in curves_of(panels[f"{term}_loss"])) == (term == "mlm")
    assert all(ax.get_title(loc="left") for ax in panels.values())


def test_a_task_that_predicts_numbers_has_its_loss_and_its_scores():
    lines = [
        {"step": 1, "split": "train", "loss": 2.0, "task_loss": 2.0, "learning_rate": 1e-5},
        {"step": 2, "split": "heldout", "dev_loss": 1.5, "dev_pearson": 0.4},
    ]
    assert curves.panels(lines) == ["task_loss", "dev_loss", "dev_pearson", "learning_rate"]


def test_the_score_of_a_task_is_drawn_beside_what_guessing_scores():
    scores = {"dev_accuracy": 0.7, "majority_dev_accuracy": 0.5}
    picture = curves.figure([{"step": 4, "split": "heldout", **scores}], PHASES)
    panels = panels_of(picture)
    assert list(panels) == ["dev_accuracy"]
    assert "baseline" in curves_of(panels["dev_accuracy"])


def test_the_legend_names_what_is_drawn_and_where_the_run_is():
    def legend(lines):
        (found,) = curves.figure(lines, PHASES).legends
        return [text.get_text() for text in found.get_texts()], found.get_title().get_text()

    assert legend(lines_of_run(60)) == (
        ["train", "held-out", "baseline"],
        "Step 60 of 100, sequences of 32",
    )
    assert legend(lines_of_run(70))[1] == "Step 70 of 100, sequences of 64"
    assert legend(lines_of_run(10))[0] == ["train"]


def test_a_long_curve_is_thinned_to_means_of_neighbours():
    count = 1700 * curves.MOST_POINTS + 13
    values = np.random.default_rng(5).random(count)
    steps, means, lows, highs = curves.thinned((np.arange(1.0, count + 1), values))
    assert len(steps) == curves.MOST_POINTS
    assert (steps[0], means[0], steps[-1]) == (1, values[0], count)
    begin = 0
    for step, mean, low, high in zip(steps.astype(int), means, lows, highs, strict=True):
        group = values[begin:step]
        assert (low, high) == (group.min(), group.max())
        assert mean == pytest.approx(group.mean())
        begin = step


@pytest.mark.parametrize("count", [1, 2, 3, curves.MOST_POINTS])
def test_a_short_curve_stays_as_it_is(count):
    points = (np.arange(count) * 3.0, np.random.default_rng(5).random(count))
    steps, means, lows, highs = curves.thinned(points)
    np.testing.assert_array_equal(steps, points[0])
    for drawn in (means, lows, highs):
        np.testing.assert_array_equal(drawn, points[1])


def test_long_runs_have_bounded_curves_and_show_their_range():
    lines = lines_of_run(40_000, every_steps=10)
    picture = curves.figure(lines, (Phase(32, 1_000_000),))
    assert [text.get_text() for text in picture.legends[0].get_texts()] == [
        "train",
        "train, lowest to highest",
        "held-out",
        "baseline",
    ]
    ax = panels_of(picture)["mlm_loss"]
    assert curves_of(ax)["train"].shape[1] == curves.MOST_POINTS
    (band,) = ax.collections
    of_train = [line["mlm_loss"] for line in lines if line["split"] == "train"]
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (min(of_train), max(of_train))


@pytest.mark.parametrize(
    ("last_step", "step", "text"),
    [(1_000_000, 250_000, "250k"), (1_000_000, 1_000_000, "1M"), (40, 20, "20")],
)
def test_steps_are_written_short(last_step, step, text):
    picture = curves.figure(lines_of_run(last_step, last_step // 4), (Phase(32, last_step),))
    assert picture.axes[-1].xaxis.get_major_formatter()(step) == text


def test_rates_are_written_as_in_a_config():
    ax = panels_of(curves.figure(lines_of_run(20), PHASES))["learning_rate"]
    write_rate = ax.yaxis.get_major_formatter()
    assert [write_rate(v) for v in (0.0, 1e-4, 2.5e-5)] == ["0", "1e-4", "2.5e-5"]


def test_values_that_are_not_finite_are_left_out():
    lines = lines_of_run(40)
    lines[0]["mlm_loss"] = float("nan")
    lines[-1]["mlm_loss"] = float("inf")
    drawn = curves_of(panels_of(curves.figure(lines, PHASES))["mlm_loss"])
    assert drawn["train"].shape[1] == 3
    assert drawn["held-out"].shape[1] == 1


@pytest.mark.parametrize("last_step", [10, 20, 100])
def test_the_file_is_a_picture(tmp_path, last_step):
    write(tmp_path, lines_of_run(last_step))
    assert curves.draw(tmp_path, PHASES) == tmp_path / "curves.png"
    picture = (tmp_path / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = np.frombuffer(picture[16:24], ">u4")
    assert (width, height) == (1350, 1065)
    assert 10_000 < len(picture) < 500_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "metrics.jsonl"]


def test_drawing_again_replaces_the_picture(tmp_path):
    write(tmp_path, lines_of_run(20))
    curves.draw(tmp_path, PHASES)
    first = (tmp_path / "curves.png").read_bytes()
    curves.draw(tmp_path, PHASES)
    assert (tmp_path / "curves.png").read_bytes() == first
    write(tmp_path, lines_of_run(40))
    curves.draw(tmp_path, PHASES)
    assert (tmp_path / "curves.png").read_bytes() != first


def test_settings_of_the_machine_do_not_change_the_picture_nor_it_them(tmp_path):
    write(tmp_path, lines_of_run(20))
    curves.draw(tmp_path, PHASES)
    expected = (tmp_path / "curves.png").read_bytes()
    with matplotlib.rc_context({"font.size": 20.0, "savefig.dpi": 30, "axes.grid": False}):
        before = dict(matplotlib.rcParams)
        curves.draw(tmp_path, PHASES)
        assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "curves.png").read_bytes() == expected


@pytest.mark.parametrize("text", [None, "", '{"step": 10, "sp'])
def test_nothing_is_drawn_before_the_first_metrics(tmp_path, text):
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text)
    assert curves.draw(tmp_path, PHASES) is None
    assert not (tmp_path / "curves.png").exists()


def test_a_half_written_last_line_is_ignored(tmp_path):
    lines = lines_of_run(40)
    write(tmp_path, lines, ending=json.dumps(lines[-1])[:50])
    assert read_lines(tmp_path / "metrics.jsonl") == lines
    assert curves.draw(tmp_path, PHASES) is not None


def test_a_broken_line_before_the_last_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "split": "train"}\n{"st\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2 is not JSON"):
        curves.draw(tmp_path, PHASES)


def test_it_says_nothing_and_needs_no_screen_nor_home(tmp_path):
    """A pod's home may be read-only, of which matplotlib would tell."""
    write(tmp_path, lines_of_run(20))
    program = (
        "import pathlib, sys\n"
        "from bert_jax import curves\n"
        "from bert_jax.config import Phase\n"
        f"curves.draw(pathlib.Path({str(tmp_path)!r}), [Phase(32, 60)])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    home = {"MPLCONFIGDIR": "/proc/nowhere", "HOME": "/proc/nowhere", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], env=home, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "curves.png").exists()
