"""What a person sees of a run: what it is made of, what is waited for, one line an interval.

Colours on a terminal only, and not where NO_COLOR is set; rich sees to both.
"""

import contextlib
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence

import rich.text

from data_pipeline import terminal_console
from data_pipeline.live_line import LINE, duration
from data_pipeline.wrapping import wrapped, wrapped_command

FAINT, LABEL, GOOD, BAD = "dim", "cyan", "green", "yellow"
_LABEL_WIDTH = 12


class Screen:
    """Prints where the process is the first one, and nothing otherwise."""

    def __init__(self, is_writer: bool) -> None:
        self._console = terminal_console.console(
            highlight=False, soft_wrap=True, quiet=not is_writer
        )
        if is_writer and self._console.is_terminal:
            LINE.start()

    def say(self, text: str, style: str = "") -> None:
        """Print a line."""
        self._print(*(rich.text.Text(line, style) for line in self._wrapped(text)))

    def _print(self, *lines: rich.text.Text) -> None:
        with LINE.hidden():
            for line in lines:
                self._console.print(line)

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Print a block of labelled lines; an empty label goes on with the one above.

        A label that begins with ! marks a warning.
        """
        width = max(_LABEL_WIDTH, *(len(label) for label, _ in rows), 0)
        lines = [rich.text.Text(title, "bold")]
        styles = LABEL, "default"
        for label, text in rows:
            if label:
                styles = (BAD, BAD) if label.startswith("!") else (LABEL, "default")
            for line in self._wrapped(text, width + 4):
                lines.append(rich.text.Text(f"  {label:{width}}  ", styles[0]))
                lines[-1].append(line, styles[1])
                label = ""
        self._print(*lines)

    def _wrapped(self, text: str, indent: int = 0) -> list[str]:
        """The lines of a text, broken between words on a terminal."""
        if not self._console.is_terminal:
            return [text]
        return wrapped(text, self._console.width - indent)

    def command(self, command: str, before: str = "") -> None:
        """Print a command for a shell, after some words; on a terminal so that it can be pasted."""
        columns = self._console.width
        if not self._console.is_terminal or len(before) + len(command) < columns:
            self.say(before + command)
            return
        lines = [before.rstrip()] * bool(before) + wrapped_command(command, columns)
        self._print(*map(rich.text.Text, lines))

    @contextlib.contextmanager
    def spinning(self, what: str) -> Iterator[Callable[[str], None]]:
        """On a terminal, show what is waited for until it is there, on the live line.

        Yields a function that shows other words in its place.
        """
        if self._console.quiet:
            yield lambda words: None
        else:
            with LINE.doing(what) as show:
                yield show

    def show(self, words: str) -> None:
        """Put words on the live line, in place of those of the piece of work under way."""
        if not self._console.quiet:
            LINE.show(words)

    @contextlib.contextmanager
    def copying(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Yield what is to be told the bytes copied and all of them; the first time says so."""
        is_told = False
        with self.spinning(f"opening {what}") as show:

            def advance(done_bytes: int, total_bytes: int) -> None:
                nonlocal is_told
                if not is_told:
                    self.say(f"copying {what}, {total_bytes / 1e9:.2f} GB", FAINT)
                is_told = True
                show(f"{done_bytes / 1e9:.2f} of {total_bytes / 1e9:.2f} GB are copied")

            yield advance

    def say_without_line(self, what: str) -> None:
        """Print what is begun where no live line shows it."""
        if not LINE.is_on:
            self.say(what, FAINT)

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[Callable[[str], None]]:
        """Say what is waited for, for long: without a terminal too. Yields as spinning does."""
        self.say_without_line(what)
        with self.spinning(what) as show:
            yield show

    def training_line(
        self, step: int, steps: int, numbers: Mapping[str, float], secs_left: float | None
    ) -> None:
        """Print the means of an interval; without a pace where no step of it was timed."""
        mantissa, exponent = f"{numbers['learning_rate']:.1e}".split("e")
        pace = f"lr {mantissa}e{int(exponent)}"
        if secs_left is not None:
            pace += f"  {numbers['sequences_per_sec']:,.0f} seq/s  {duration(secs_left)} left"
        self._print(
            rich.text.Text.assemble(
                (f"{step:>{len(f'{steps:,}')},}/{steps:,}  ", "bold"),
                f"{_terms(numbers)}  ",
                (pace, FAINT),
            )
        )

    def heldout_line(
        self, step: int, numbers: Mapping[str, float], baseline: Mapping[str, float]
    ) -> None:
        """Print an evaluation beside what a model without context scores."""
        style = ""
        if "unigram_mlm_loss" in baseline:
            style = GOOD if numbers["mlm_loss"] < baseline["unigram_mlm_loss"] else BAD
        self.say(f"held-out at {step:,}  {_beside(numbers, baseline)}", style)

    def scores_line(
        self, step: int, main: str, scores: Mapping[str, float], baseline: Mapping[str, float]
    ) -> None:
        """Print the scores of a task, the one that decides first, beside what guessing scores."""
        words = [f"{main} {scores[main]:.4f}"]
        style, guessed = "", baseline.get(f"majority_{main}")
        if guessed is not None:
            words[0] += f" (majority {guessed:.4f})"
            style = GOOD if scores[main] > guessed else BAD
        words += [f"{name} {value:.4f}" for name, value in scores.items() if name != main]
        self.say(f"dev at {step:,}  {'  '.join(words)}", style)

    def input_bound(self, share: float, advice: str) -> None:
        """Print that batches came too late for this share of an interval, and what to do."""
        self.say(
            f"the devices waited for batches for {share:.0%} of this interval: the input pipeline "
            f"is the bottleneck. {advice}",
            BAD,
        )

    def expected_end(self, secs_left: float) -> None:
        """Print when the run will be over at the pace just measured."""
        now = datetime.datetime.now()
        end = now + datetime.timedelta(seconds=secs_left)
        day = "" if end.date() == now.date() else f" on {end:%Y-%m-%d}"
        self.say(f"at this pace the last step is done in {duration(secs_left)}, {end:%H:%M}{day}")


def _names(numbers: Mapping[str, float]) -> list[str]:
    """The terms of the objective."""
    return [key.removesuffix("_accuracy") for key in numbers if key.endswith("_accuracy")]


def _terms(numbers: Mapping[str, float]) -> str:
    """Loss and accuracy of each term; the loss alone where numbers are predicted."""
    names = _names(numbers)
    if not names:
        return f"loss {numbers['loss']:.3f}"
    return "  ".join(
        f"{name} {numbers[f'{name}_loss']:.3f} {numbers[f'{name}_accuracy']:5.1%}" for name in names
    )


def _beside(numbers: Mapping[str, float], baseline: Mapping[str, float]) -> str:
    """The same beside the baselines; a term that has one for its accuracy is shown by that."""
    shown = []
    for name in _names(numbers):
        loss, right = f"{numbers[f'{name}_loss']:.3f}", f"{numbers[f'{name}_accuracy']:.1%}"
        unigram = baseline.get(f"unigram_{name}_loss")
        majority = baseline.get(f"majority_{name}_accuracy")
        if majority is not None:
            shown.append(f"{name} {right} (majority {majority:.1%})")
        elif unigram is not None:
            shown.append(f"{name} {loss} (unigram {unigram:.3f}) {right}")
        else:
            shown.append(f"{name} {loss} {right}")
    return "  ".join(shown)
