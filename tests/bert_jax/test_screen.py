"""What a person sees of a run: lines that can be read, colours only where they belong."""

import datetime
import io
import shlex
import subprocess

import pytest
import rich.console

from bert_jax import screen as screen_lib
from bert_jax.screen import Screen, duration
from data_pipeline import live_line
from data_pipeline.live_line import LiveLine

TRAIN = {
    "loss": 7.25,
    "mlm_loss": 6.5,
    "nsp_loss": 0.75,
    "mlm_accuracy": 0.125,
    "nsp_accuracy": 0.5,
    "learning_rate": 3e-4,
    "sequences_per_sec": 1234.5,
}
BASELINE = {"unigram_mlm_loss": 6.25, "majority_nsp_accuracy": 0.625}


@pytest.fixture
def plain():
    """A screen that is no terminal, and what was printed on it."""
    return Screen(is_writer=True)


@pytest.fixture
def terminal(monkeypatch):
    """A screen on a colour terminal, and what was printed on it."""
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)

    def make() -> tuple[Screen, io.StringIO]:
        out = io.StringIO()
        console = rich.console.Console(
            file=out, force_terminal=True, color_system="standard", highlight=False, width=200
        )
        monkeypatch.setattr(screen_lib.terminal_console, "console", lambda **_: console)
        return Screen(is_writer=True), out

    return make


@pytest.fixture
def line(monkeypatch):
    """What the live line is told to show, "hidden" where a line is printed."""
    shown = []

    def draw(self):
        shown.append("hidden" if self._printing else self._words)

    monkeypatch.setattr(live_line, "LINE", LiveLine())
    monkeypatch.setattr(screen_lib, "LINE", live_line.LINE)
    monkeypatch.setattr(LiveLine, "_draw", draw)
    monkeypatch.setattr(LiveLine, "_hide", draw)
    return shown


@pytest.mark.parametrize(
    ("secs", "text"),
    [(0, "0:00"), (59.6, "1:00"), (125, "2:05"), (10925, "3:02:05"), (355_800, "4 d 02:50")],
)
def test_a_duration_is_as_long_as_it_must_be(secs, text):
    assert duration(secs) == text


def test_a_training_line_has_step_losses_accuracies_rate_pace_and_time_left(plain, capsys):
    plain.training_line(20, 1_000, TRAIN, 125)
    assert capsys.readouterr().out == (
        "   20/1,000  mlm 6.500 12.5%  nsp 0.750 50.0%  lr 3.0e-4  1,234 seq/s  2:05 left\n"
    )


def test_an_interval_of_which_nothing_was_timed_has_no_pace(plain, capsys):
    numbers = {name: value for name, value in TRAIN.items() if name != "sequences_per_sec"}
    plain.training_line(1, 9, numbers, None)
    assert capsys.readouterr().out == "1/9  mlm 6.500 12.5%  nsp 0.750 50.0%  lr 3.0e-4\n"


def test_a_heldout_line_stands_beside_the_baselines(plain, capsys):
    plain.heldout_line(20, TRAIN, BASELINE)
    assert capsys.readouterr().out == (
        "held-out at 20  mlm 6.500 (unigram 6.250) 12.5%  nsp 50.0% (majority 62.5%)\n"
    )


def test_an_objective_of_other_terms_is_shown_by_its_names(plain, capsys):
    plain.heldout_line(3, {"next_word_loss": 2.0, "next_word_accuracy": 0.25}, {})
    assert capsys.readouterr().out == "held-out at 3  next_word 2.000 25.0%\n"


def test_the_lines_of_a_small_run_fit_80_columns(plain, capsys):
    numbers = TRAIN | {"mlm_accuracy": 0.625, "nsp_accuracy": 0.875}
    plain.training_line(1_240, 1_240, numbers | {"sequences_per_sec": 876.0}, 3_599)
    plain.heldout_line(1_240, numbers, BASELINE)
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())


def test_a_copy_is_a_line_once_it_begins(plain, capsys):
    with plain.copying("gs://bucket/store") as advance:
        assert capsys.readouterr().out == ""  # there may be a copy already
        for done_bytes in (0, 2 * 10**9, 5 * 10**9):
            advance(done_bytes, 5 * 10**9)
    assert capsys.readouterr().out == "copying gs://bucket/store, 5.00 GB\n"


def test_a_copy_shows_how_far_it_is(plain, line):
    with plain.copying("gs://bucket/store") as advance:
        advance(3 * 10**9, 5 * 10**9)
    assert "3.00 of 5.00 GB are copied" in line and line[-1] == ""


def test_late_batches_are_told_with_their_share_and_how_to_measure(plain, capsys):
    plain.input_bound(0.4321, "Do this.")
    out = capsys.readouterr().out
    assert out.startswith("the devices waited for batches for 43% of this interval: ")
    assert out.endswith(" is the bottleneck. Do this.\n")


def test_the_expected_end_names_the_day_when_it_is_another(plain, capsys):
    plain.expected_end(3 * 86_400)
    day = datetime.datetime.now() + datetime.timedelta(days=3)
    assert f"done in 3 d 00:00, {day:%H:%M} on {day:%Y-%m-%d}" in capsys.readouterr().out


def test_without_a_terminal_there_are_no_colours_and_no_broken_lines(plain, capsys):
    plain.table("title", [("label", "x" * 300), ("", "[not markup]")])
    plain.heldout_line(1, TRAIN, BASELINE)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "x" * 300 in out
    assert "[not markup]" in out


@pytest.fixture
def narrow(monkeypatch):
    """A screen on a terminal of 80 columns without colours, and what was printed on it."""
    out = io.StringIO()
    console = rich.console.Console(file=out, force_terminal=True, color_system=None, width=80)
    monkeypatch.setattr(screen_lib.terminal_console, "console", lambda **_: console)
    return Screen(is_writer=True), out


def test_80_columns_break_lines_between_words_and_labels_of_any_width_keep_one_column(narrow):
    screen, out = narrow
    text = "a sentence of words, with --config.data.packed_examples=8 in it, that goes on " * 3
    rows = [("short", text), ("a label of 19 words", "told"), ("! epochs", text)]
    screen.table("title", rows)
    screen.say(text)
    lines = out.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert {word for line in lines for word in line.split()} == set(
        f"title {' '.join(label for label, _ in rows)} told {text}".split()
    )
    assert lines[1].index("a sentence") == lines[lines.index("  a label of 19 words  told")].index(
        "told"
    )


def test_a_command_can_be_pasted_from_80_columns(narrow):
    screen, out = narrow
    command = "python -m bert_jax.fill_mask --workdir='runs/a name' " + 40 * "x" + " '[MASK]  two'"
    screen.command(command, before="try it: ")
    first, *lines = out.getvalue().splitlines()
    assert first == "try it:" and len(lines) > 1
    assert all(len(line) <= 80 for line in lines)
    shell = subprocess.run(
        ["sh", "-c", "printf '%s\\n' " + "\n".join(lines)], capture_output=True, text=True
    )
    assert shell.stdout.splitlines() == shlex.split(command)


def test_a_short_command_stays_on_the_line_of_its_words(narrow, plain, capsys):
    screen, out = narrow
    screen.command("python -m x", before="try it: ")
    assert out.getvalue() == "try it: python -m x\n"


def test_percentages_have_one_width(plain, capsys):
    for accuracy in (0.049, 0.125):
        plain.training_line(1, 9, TRAIN | {"mlm_accuracy": accuracy}, 5)
    first, second = capsys.readouterr().out.splitlines()
    assert first.index("nsp") == second.index("nsp")


def test_a_terminal_tells_better_than_the_baseline_from_worse_by_colour(terminal):
    screen, out = terminal()
    screen.heldout_line(1, TRAIN, BASELINE)
    screen.heldout_line(2, TRAIN | {"mlm_loss": 6.0}, BASELINE)
    worse, better = out.getvalue().splitlines()
    assert worse.startswith("\x1b[33m") and better.startswith("\x1b[32m")


def test_no_color_is_respected(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, as far as rich can know
    monkeypatch.setenv("TERM", "xterm")
    for wish, is_coloured in ((None, True), ("1", False)):
        if wish:
            monkeypatch.setenv("NO_COLOR", wish)
        Screen(is_writer=True).heldout_line(1, TRAIN, BASELINE)
        assert ("[33m" in capsys.readouterr().out) == is_coloured


def test_what_is_waited_for_is_said_and_on_a_terminal_shown_by_the_live_line(
    plain, line, monkeypatch, capsys
):
    with plain.waiting("compiling"), plain.spinning("unseen"):
        pass
    assert capsys.readouterr().out == "compiling\n"
    monkeypatch.setattr(LiveLine, "is_on", True)
    del line[:]
    with plain.waiting("compiling") as show:
        show("still compiling")
    assert line == ["compiling", "still compiling", ""]
    assert capsys.readouterr().out == ""


def test_the_live_line_is_away_while_a_line_is_printed(plain, line, capsys):
    for prints in (
        lambda: plain.say("a line"),
        lambda: plain.table("title", [("label", "text")]),
        lambda: plain.training_line(20, 1_000, TRAIN, 125),
    ):
        with plain.spinning("evaluating"):
            del line[:]
            prints()
            assert line[:1] == ["hidden"] and line[-1] == "evaluating"
    assert "a line\n" in capsys.readouterr().out


def test_only_the_first_process_prints(line, capsys):
    quiet = Screen(is_writer=False)
    quiet.show("nothing")
    quiet.say("nothing")
    quiet.table("nothing", [("a", "b")])
    with quiet.waiting("nothing"):
        quiet.training_line(1, 2, TRAIN, 3)
    assert capsys.readouterr().out == ""
    assert set(line) <= {"hidden", ""}
