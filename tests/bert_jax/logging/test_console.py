"""What a person sees of a run: lines that can be read, colors only where they belong."""

import datetime
import io
import shlex
import subprocess

import pytest
import rich.console

from bert_jax.logging import console as screen_lib
from bert_jax.logging.console import Screen, StepLine, duration
from data_pipeline.cli import live_line
from data_pipeline.cli.live_line import LiveLine

TRAIN = {
    "loss": 7.25,
    "mlm_loss": 6.5,
    "nsp_loss": 0.75,
    "mlm_accuracy": 0.125,
    "nsp_accuracy": 0.5,
    "learning_rate": 3e-4,
    "sequences_per_sec": 1234.5,
}
BASELINE = {
    "uniform_mlm_loss": 8.0,
    "unigram_mlm_loss": 6.25,
    "ngram_mlm_loss": 4.5,
    "majority_nsp_accuracy": 0.625,
}


@pytest.fixture
def plain():
    """A screen that is no terminal, and what was printed on it."""
    return Screen(is_writer=True)


@pytest.fixture
def terminal(monkeypatch):
    """A screen on a terminal of 80 columns without colors, and what was printed on it."""
    out = io.StringIO()
    console = rich.console.Console(file=out, force_terminal=True, color_system=None, width=80)
    monkeypatch.setattr(screen_lib, "make_console", lambda **_: console)
    return Screen(is_writer=True), out


@pytest.fixture
def line(monkeypatch):
    """What the live line is told to show, "hidden" where a line is printed."""
    shown = []

    def show(self, words, since_secs=0.0):
        shown.append(words)
        self._words = words

    monkeypatch.setattr(live_line, "LINE", LiveLine())
    monkeypatch.setattr(screen_lib, "LINE", live_line.LINE)
    monkeypatch.setattr(LiveLine, "show", show)
    monkeypatch.setattr(LiveLine, "_clear", lambda self: shown.append("hidden"))
    return shown


@pytest.mark.parametrize(
    ("secs", "text"),
    [(0, "0:00"), (59.6, "1:00"), (125, "2:05"), (10925, "3:02:05"), (355_800, "4 d 02:50")],
)
def test_a_duration_is_as_long_as_it_must_be(secs, text):
    assert duration(secs) == text


def test_the_lines_of_a_run(plain, capsys):
    untimed = {name: value for name, value in TRAIN.items() if name != "sequences_per_sec"}
    plain.training_line(1, 9, untimed, None)
    plain.training_line(20, 1_000, TRAIN, 125)
    plain.training_line(21, 1_000, TRAIN | {"mlm_accuracy": 0.049}, 125)
    plain.heldout_line(20, TRAIN, BASELINE)
    plain.heldout_line(30, TRAIN | {"mlm_loss": 5.0}, BASELINE)
    plain.heldout_line(40, TRAIN | {"mlm_loss": 4.0}, BASELINE)
    plain.heldout_line(3, {"next_word_loss": 2.0, "next_word_accuracy": 0.25}, {})
    plain.input_bound(0.4321, "Do this.")
    with plain.copying("gs://bucket/store") as advance:
        for done_bytes in (0, 2 * 10**9, 5 * 10**9):
            advance(done_bytes, 5 * 10**9)
    assert (
        capsys.readouterr().out
        == """\
1/9  mlm 6.500 12.5%  nsp 0.750 50.0%  lr 3.0e-4
   20/1,000  mlm 6.500 12.5%  nsp 0.750 50.0%  lr 3.0e-4  1,234 seq/s  2:05 left
   21/1,000  mlm 6.500  4.9%  nsp 0.750 50.0%  lr 3.0e-4  1,234 seq/s  2:05 left
held-out at 20  mlm 6.500 (unigram 6.250) 12.5%  nsp 50.0% (majority 62.5%)
held-out at 30  mlm 5.000 (n-gram 4.500) 12.5%  nsp 50.0% (majority 62.5%)
held-out at 40  mlm 4.000 (n-gram 4.500) 12.5%  nsp 50.0% (majority 62.5%)
held-out at 3  next_word 2.000 25.0%
the devices waited for batches for 43% of this interval: the input pipeline is the bottleneck. \
Do this.
copying gs://bucket/store, 5.00 GB
"""
    )


def test_a_copy_shows_how_far_it_is(plain, line):
    with plain.copying("gs://bucket/store") as advance:
        advance(3 * 10**9, 5 * 10**9)
    assert "3.00 of 5.00 GB are copied" in line and line[-1] == ""


def test_the_expected_end_names_the_day_when_it_is_another(plain, capsys):
    plain.expected_end(3 * 86_400)
    day = datetime.datetime.now() + datetime.timedelta(days=3)
    assert f"ends in 3 d 00:00, at {day:%H:%M} on {day:%Y-%m-%d}" in capsys.readouterr().out
    plain.expected_end(1e12)  # steps that are meant to be stopped by hand
    assert capsys.readouterr().out == "at this pace the run ends in 11574074 d 01:46\n"


def test_without_a_terminal_there_are_no_colors_and_no_broken_lines(plain, capsys):
    plain.table("title", [("label", "x" * 300), ("", "[not markup]")])
    plain.heldout_line(1, TRAIN, BASELINE)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "x" * 300 in out
    assert "[not markup]" in out


def test_80_columns_break_lines_between_words_and_labels_of_any_width_keep_one_column(terminal):
    screen, out = terminal
    text = "a sentence of words, with --config.data.packed_examples=8 in it, that goes on " * 3
    rows = [("short", text), ("a label of 19 words", "told"), ("! epochs", text)]
    screen.table("title", rows)
    screen.print(text)
    screen.table(text, [])
    lines = out.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert {word for line in lines for word in line.split()} == set(
        f"title {' '.join(label for label, _ in rows)} told {text}".split()
    )
    assert lines[1].index("a sentence") == lines[lines.index("  a label of 19 words  told")].index(
        "told"
    )


def test_a_command_can_be_pasted_from_80_columns(terminal):
    screen, out = terminal
    command = "python -m bert_jax.fill_mask --workdir='runs/a name' " + 40 * "x" + " '[MASK]  two'"
    screen.command(command, before="try it: ")
    first, *lines = out.getvalue().splitlines()
    assert first == "try it:" and len(lines) > 1
    assert all(len(line) <= 80 for line in lines)
    shell = subprocess.run(
        ["sh", "-c", "printf '%s\\n' " + "\n".join(lines)], capture_output=True, text=True
    )
    assert shell.stdout.splitlines() == shlex.split(command)


def test_a_terminal_tells_better_from_worse_by_color_unless_no_color_is_set(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, as far as rich can know
    monkeypatch.setenv("TERM", "xterm")
    better = TRAIN | {"mlm_loss": 6.0}
    for colors in (("[33m", "[32m"), ("", "")):  # worse and better than the baseline
        for numbers, color in zip((TRAIN, better), colors, strict=True):
            Screen(is_writer=True).heldout_line(1, numbers, BASELINE)
            out = capsys.readouterr().out
            assert out.startswith(f"\x1b{color}") if color else "\x1b" not in out
        monkeypatch.setenv("NO_COLOR", "1")


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
        lambda: plain.print("a line"),
        lambda: plain.table("title", [("label", "text")]),
        lambda: plain.training_line(20, 1_000, TRAIN, 125),
    ):
        with plain.spinning("evaluating"):
            del line[:]
            prints()
            assert line == ["hidden"]
    assert "a line\n" in capsys.readouterr().out


def test_only_the_first_process_prints(line, capsys):
    quiet = Screen(is_writer=False)
    quiet.show("nothing")
    quiet.print("nothing")
    quiet.table("nothing", [("a", "b")])
    with quiet.waiting("nothing"):
        quiet.training_line(1, 2, TRAIN, 3)
    assert capsys.readouterr().out == ""
    assert set(line) <= {"hidden", ""}


@pytest.fixture
def shown(monkeypatch):
    """What the screen was told to show."""
    words = []
    monkeypatch.setattr(LiveLine, "is_on", True)
    monkeypatch.setattr(Screen, "show", lambda self, text: words.append(text))
    return words


def test_steps_are_shown_with_the_pace_of_the_last_seconds_and_the_time_left(shown):
    times = iter([0.0, 0.1, 2.0, 30.0, 60.0])
    line = StepLine(Screen(is_writer=False), 1_000, clock=lambda: next(times))
    line.show(1, 10, 999)
    line.show(2, 10, 998)  # sooner than anybody reads
    line.show(3, 10, 997)  # two steps of 10 in 2 s
    line.show(31, 10, 100)  # 28 steps in 28 s: what is older than the window no longer counts
    line.show(61, 10, 70)
    assert shown == [
        "step 1/1,000",
        "step 3/1,000  10 seq/s  16:37 left",
        "step 31/1,000  10 seq/s  1:40 left",
        "step 61/1,000  10 seq/s  1:10 left",
    ]


def test_a_pause_is_no_part_of_the_pace(shown):
    times = iter([0.0, 1.0, 100.0, 101.0])
    line = StepLine(Screen(is_writer=False), 9, clock=lambda: next(times))
    line.show(1, 5, 8)
    line.show(2, 5, 7)
    line.restart(3)  # after a save
    line.show(4, 5, 5)
    line.show(5, 5, 4)
    assert shown[2:] == ["step 3/9", "step 4/9", "step 5/9  5 seq/s  0:04 left"]


def test_without_a_terminal_nothing_is_computed(monkeypatch):
    monkeypatch.setattr(screen_lib.time, "perf_counter", lambda: 1 / 0)
    StepLine(Screen(is_writer=False), 9, clock=lambda: 1 / 0).show(1, 5, 8)
