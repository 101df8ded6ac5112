"""Guess the words that [MASK] hides in your sentences, or in sentences that a run held out.

A sentence may have several masks; guesses are tokens of the vocabulary, most of them words.
"""

import dataclasses
import sys
from collections.abc import Sequence

from bert_jax.runtime import cli
from data_pipeline.cli.flags import Command, flag
from data_pipeline.io import Refused


@dataclasses.dataclass(frozen=True)
class FillMaskFlags:
    """Declare the flags."""

    checkpoint: str = flag(
        "",
        "workdir of a run, orbax:WORKDIR@STEP, hf:DIR or google:PREFIX",
        metavar="CK",
        is_required=True,
    )
    sentences: tuple[str, ...] = flag(
        (), "sentences with [MASK] in them", metavar="SENTENCE", is_positional=True
    )
    heldout: int = flag(
        0, "number of held-out sentences per store of the run, each with a hidden word", minimum=0
    )
    top: int = flag(5, "guesses per [MASK]", minimum=1)


COMMAND = Command(
    "bert_jax.fill_mask",
    __doc__,
    FillMaskFlags,
    "python -m bert_jax.fill_mask --checkpoint=runs/base 'A sentence with one [MASK] in it.'",
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

import rich.text

from bert_jax.inference.fill_mask import (
    Question,
    format_guesses,
    guess_tokens,
    hide_heldout_words,
    load_guesser,
    open_stores_of_run,
    read_question,
)
from bert_jax.interop.pretrained import PlacedModel
from data_pipeline.cli.live_line import LINE
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.cli.terminal import make_console, wrap_text


def _main(log: LibraryLog, flags: FillMaskFlags) -> int:
    with cli.preparing():
        address = flags.checkpoint
        if not flags.sentences and flags.heldout == 0:
            raise Refused(
                "there is nothing to guess: give sentences with [MASK], or --heldout=5 of a run"
            )
        log.hold()
        stores = (
            open_stores_of_run(address, f"--heldout is {flags.heldout}") if flags.heldout else ()
        )
        with LINE.doing(f"reading {address}"):
            model = load_guesser(address)
        questions = [read_question(model, sentence) for sentence in flags.sentences]
        positions = model.checkpoint.config.max_position_embeddings
        for store in stores:
            questions += hide_heldout_words(
                model.vocabulary, store.heldout, flags.heldout, positions
            )
    return _answer(model, questions, flags.top)


def _answer(model: PlacedModel, questions: Sequence[Question], top: int) -> int:
    console = make_console(highlight=False, soft_wrap=True)
    with LINE.doing("guessing"):
        answered = list(zip(questions, guess_tokens(model, questions, top), strict=True))
    for question, guesses in answered:
        text = question.text
        for line in wrap_text(text, console.width) if console.is_terminal else [text]:
            console.print(rich.text.Text(line, "bold"))
        for guesses_of_mask, answer in zip(guesses, question.answers, strict=True):
            console.print(format_guesses(guesses_of_mask, answer))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(COMMAND, _main, "nothing was changed", argv)


if __name__ == "__main__":
    sys.exit(main())
