"""Print a run on the screen: its opening block, one line per interval, a live line.

Only terminals get colors, and none if NO_COLOR is set; rich decides.
"""

import collections
import contextlib
import datetime
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import rich.text

from data_pipeline.cli.live_line import LINE, duration
from data_pipeline.cli.terminal import make_console, wrap_command, wrap_text

Rows = list[tuple[str, str]]  # label and text of each line of a table
FAINT, LABEL, GOOD, BAD = "dim", "cyan", "green", "yellow"
_LABEL_WIDTH = 12
_MAX_DATED_SECS = 1e10  # 300 years; Python has no dates after the year 9999
# Losses of models without context, highest first: the PREFIX of PREFIX_TERM_loss -> its name.
REFERENCE_LINES = {"uniform": "ln V", "unigram": "unigram", "ngram": "n-gram"}


class Screen:
    """Print on the first process, and nothing on the others."""

    def __init__(self, is_writer: bool) -> None:
        self._console = make_console(highlight=False, soft_wrap=True, quiet=not is_writer)
        if is_writer and self._console.is_terminal:
            LINE.start()

    def print(self, text: str, style: str = "") -> None:
        """Print a line."""
        self._print(*(rich.text.Text(line, style) for line in self._wrapped(text)))

    def _print(self, *lines: rich.text.Text) -> None:
        with LINE.hidden():
            for line in lines:
                self._console.print(line)

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Print a block of labeled lines; an empty label continues the line above.

        An empty title is left out. A label that begins with ! marks a warning.
        """
        width = max(_LABEL_WIDTH, *(len(label) for label, _ in rows), 0)
        lines = [rich.text.Text(line, "bold") for line in self._wrapped(title) if title]
        styles = LABEL, "default"
        for label, text in rows:
            if label:
                styles = (BAD, BAD) if label.startswith("!") else (LABEL, "default")
            for line in self._wrapped(text, width + 4):
                lines.append(rich.text.Text(f"  {label:{width}}  ", styles[0]))
                lines[-1].append(line, styles[1])
                label = ""
        self._print(*lines)

    @property
    def text_width(self) -> int:
        """Return how many characters fit next to a table label; 80 columns without a terminal."""
        return self._console.width - _LABEL_WIDTH - 4

    def _wrapped(self, text: str, indent: int = 0) -> list[str]:
        """Break a text between words on a terminal."""
        if not self._console.is_terminal:
            return [text]
        return wrap_text(text, self._console.width - indent)

    def command(self, command: str, before: str = "") -> None:
        """Print a shell command after the text `before`; on a terminal, ready to be pasted."""
        columns = self._console.width
        if not self._console.is_terminal or len(before) + len(command) < columns:
            self.print(before + command)
            return
        lines = [before.rstrip()] * bool(before) + wrap_command(command, columns)
        self._print(*map(rich.text.Text, lines))

    @contextlib.contextmanager
    def spinning(self, words: str) -> Iterator[Callable[[str], None]]:
        """Show on the live line what the process does inside the context; terminals only.

        Yields a function that replaces the words.
        """
        if self._console.quiet:
            yield lambda words: None
        else:
            with LINE.doing(words) as show:
                yield show

    def show(self, words: str) -> None:
        """Replace the words on the live line."""
        if not self._console.quiet:
            LINE.show(words)

    @contextlib.contextmanager
    def copying(self, words: str) -> Iterator[Callable[[int, int], None]]:
        """Yield a function of (bytes copied, total bytes) that shows the progress of a copy."""
        is_announced = False
        with self.spinning(f"opening {words}") as show:

            def advance(done_bytes: int, total_bytes: int) -> None:
                nonlocal is_announced
                if not is_announced:
                    self.print(f"copying {words}, {total_bytes / 1e9:.2f} GB", FAINT)
                is_announced = True
                show(f"{done_bytes / 1e9:.2f} of {total_bytes / 1e9:.2f} GB are copied")

            yield advance

    def print_without_line(self, words: str) -> None:
        """Print words where there is no live line to show them."""
        if not LINE.is_on:
            self.print(words, FAINT)

    @contextlib.contextmanager
    def waiting(self, words: str) -> Iterator[Callable[[str], None]]:
        """Show a long wait, even without a terminal. Yields the same as `spinning`."""
        self.print_without_line(words)
        with self.spinning(words) as show:
            yield show

    def training_line(
        self, step: int, steps: int, numbers: Mapping[str, float], secs_left: float | None
    ) -> None:
        """Print the means of an interval, and the pace if a step of it was timed."""
        mantissa, exponent = f"{numbers['learning_rate']:.1e}".split("e")
        pace = f"lr {mantissa}e{int(exponent)}"
        if secs_left is not None:
            pace += f"  {numbers['sequences_per_sec']:,.0f} seq/s  {duration(secs_left)} left"
        self._print(
            rich.text.Text.assemble(
                (f"{step:>{len(f'{steps:,}')},}/{steps:,}  ", "bold"),
                f"{_format_terms(numbers)}  ",
                (pace, FAINT),
            )
        )

    def heldout_line(
        self,
        step: int,
        numbers: Mapping[str, float],
        baseline: Mapping[str, float],
        store: str = "",
    ) -> None:
        """Print an evaluation of one store or all, with the next reference line to pass."""
        style = ""
        for name in list_terms(numbers):
            if f"unigram_{name}_loss" in baseline:
                style = GOOD if numbers[f"{name}_loss"] < baseline[f"unigram_{name}_loss"] else BAD
        place = f"  {store}" if store else f"held-out at {step:,}"
        self.print(f"{place}  {_format_with_baseline(numbers, baseline)}", style)

    def scores_line(
        self, step: int, main: str, scores: Mapping[str, float], baseline: Mapping[str, float]
    ) -> None:
        """Print the scores of a task, the main score first, with the majority baseline's."""
        words = [f"{main} {scores[main]:.4f}"]
        style, guessed = "", baseline.get(f"majority_{main}")
        if guessed is not None:
            words[0] += f" (majority {guessed:.4f})"
            style = GOOD if scores[main] > guessed else BAD
        words += [f"{name} {value:.4f}" for name, value in scores.items() if name != main]
        self.print(f"dev at {step:,}  {'  '.join(words)}", style)

    def input_bound(self, share: float, advice: str) -> None:
        """Print the share of an interval in which devices waited for batches, and advice."""
        self.print(
            f"the devices waited for batches for {share:.0%} of this interval: the input pipeline "
            f"is the bottleneck. {advice}",
            BAD,
        )

    def finding(self, rule: str, sentence: str, advice: str) -> None:
        """Print what looks wrong about the run, and what to try."""
        self.print(f"! {rule}: {sentence}", BAD)
        self.print(f"  {advice}", BAD)

    def expected_end(self, secs_left: float) -> None:
        """Print when the run ends at the pace just measured."""
        now, words = datetime.datetime.now(), f"at this pace the run ends in {duration(secs_left)}"
        if secs_left < _MAX_DATED_SECS:
            end = now + datetime.timedelta(seconds=secs_left)
            day = "" if end.date() == now.date() else f" on {end:%Y-%m-%d}"
            words += f", at {end:%H:%M}{day}"
        self.print(words)


def list_terms(metrics: Collection[str]) -> list[str]:
    """List the terms of an objective, such as mlm and nsp: each has a loss and an accuracy."""
    terms = dict.fromkeys(name.removesuffix("_loss") for name in metrics if name.endswith("_loss"))
    return [term for term in terms if f"{term}_accuracy" in metrics]


def _format_terms(numbers: Mapping[str, float]) -> str:
    """Format loss and accuracy of each term; the loss alone for regression."""
    names = list_terms(numbers)
    if not names:
        return f"loss {numbers['loss']:.3f}"
    return "  ".join(
        f"{name} {numbers[f'{name}_loss']:.3f} {numbers[f'{name}_accuracy']:5.1%}"
        f"{_format_auc(numbers, name)}"
        for name in names
    )


def _format_auc(numbers: Mapping[str, float], name: str) -> str:
    """Format the area under the ROC curve of a term that has one."""
    return f" auc {numbers[f'{name}_auc']:.3f}" if f"{name}_auc" in numbers else ""


def _format_with_baseline(numbers: Mapping[str, float], baseline: Mapping[str, float]) -> str:
    """Format each term with its baseline: the accuracy if it has one, otherwise the loss."""
    parts = []
    for name in list_terms(numbers):
        loss, right = f"{numbers[f'{name}_loss']:.3f}", f"{numbers[f'{name}_accuracy']:.1%}"
        majority = {**numbers, **baseline}.get(f"majority_{name}_accuracy")
        if majority is not None:
            parts.append(f"{name} {right} (majority {majority:.1%}){_format_auc(numbers, name)}")
        else:
            line = _format_next_line(numbers[f"{name}_loss"], baseline, name)
            parts.append(f"{name} {loss}{line} {right}")
    return "  ".join(parts)


def list_lines(baseline: Mapping[str, float], name: str) -> dict[str, float]:
    """Return the reference losses of a term by name, highest first."""
    keys = {word: f"{line}_{name}_loss" for line, word in REFERENCE_LINES.items()}
    return {word: baseline[key] for word, key in keys.items() if key in baseline}


def _format_next_line(loss: float, baseline: Mapping[str, float], name: str) -> str:
    """Format the next reference line below a loss, or the lowest line; a run begins at ln V."""
    lines = [line for line in list_lines(baseline, name).items() if line[0] != "ln V"]
    if not lines:
        return ""
    word, value = next((line for line in lines if line[1] < loss), lines[-1])
    return f" ({word} {value:.3f})"


_EVERY_SECS = 0.2  # a person reads no faster
_WINDOW_SECS = 20.0  # the pace shown is the mean over this time


class StepLine:
    """Show completed steps, pace and time left on the live line; nothing without a terminal."""

    def __init__(
        self, screen: Screen, total_steps: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._screen, self._total_steps, self._clock = screen, total_steps, clock
        self._seen: collections.deque[tuple[float, int]] = collections.deque()  # (time, step)

    def restart(self, step: int) -> None:
        """Show a completed step and restart the pace, for example to exclude the time of a save."""
        self._seen.clear()
        self._screen.show(self._words(step))

    def show(self, step: int, rows_per_step: float, steps_left: float) -> None:
        """Show a completed step.

        rows_per_step counts examples; steps_left is the rest of the run in steps of this length.
        """
        if not LINE.is_on:
            return
        now = self._clock()
        if self._seen and now - self._seen[-1][0] < _EVERY_SECS:
            return
        self._seen.append((now, step))
        while now - self._seen[0][0] > _WINDOW_SECS and len(self._seen) > 2:
            self._seen.popleft()
        words = self._words(step)
        since, first = self._seen[0]
        if step > first:
            secs = (now - since) / (step - first)
            words += f"  {rows_per_step / secs:,.0f} seq/s  {duration(secs * steps_left)} left"
        self._screen.show(words)

    def _words(self, step: int) -> str:
        return f"step {step:,}/{self._total_steps:,}"
