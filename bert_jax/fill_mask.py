"""Guess the words hidden by [MASK]: python -m bert_jax.fill_mask --workdir=DIR "The [MASK] is ..."

    --heldout=5    take 5 sentences that the run of DIR never trained on as well, hide a word of
                   each, and show what it was
    --top=5        guesses shown for each [MASK]

A sentence may have several of them; guesses are pieces of the vocabulary, most of them words.
"""

import functools
from collections.abc import Callable, Sequence

import rich.console
import rich.text
from absl import flags

from bert_jax import command_line, trained
from bert_jax.feed import open_store, short_digest
from bert_jax.mask_filling import Guess, Question, guess, heldout_questions, question
from bert_jax.trained import Trained
from data_pipeline.library_log import LibraryLog
from data_pipeline.store import EXAMPLES
from data_pipeline.vocab import WORD_START

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "folder of a run of bert_jax.train, or gs://BUCKET/PATH"
)
_HELDOUT = flags.DEFINE_integer("heldout", 0, "held-out sentences to hide a word of")
_TOP = flags.DEFINE_integer("top", 5, "guesses for each [MASK]")

USAGE = "python -m bert_jax.fill_mask --workdir=DIR 'A sentence with one [MASK] in it.' ..."


def _prepare(log: LibraryLog, sentences: list[str]) -> Callable[[], int]:
    if not _WORKDIR.value:
        raise ValueError(f"--workdir is missing: the folder of a run; {USAGE}")
    if _HELDOUT.value < 0:
        raise ValueError(f"--heldout is {_HELDOUT.value}; it must be 0 or more")
    if not sentences and _HELDOUT.value == 0:
        raise ValueError(f"there is nothing to guess: give sentences with [MASK]; {USAGE}")
    if _TOP.value < 1:
        raise ValueError(f"--top is {_TOP.value}; it must be 1 or more")
    log.hold()
    model = trained.load(_WORKDIR.value)
    questions = [question(model, sentence) for sentence in sentences]
    if _HELDOUT.value > 0:
        store = open_store(model.receipt.config.data)
        if short_digest(store) != model.receipt.store_digest:
            raise ValueError(
                f"{store.directory} is not the store that the run of {_WORKDIR.value} was trained "
                "on; put that one back, or ask your own sentences without --heldout"
            )
        if store.kind == EXAMPLES:
            raise ValueError(
                f"--heldout is {_HELDOUT.value}, but {store.directory} holds ready-made examples "
                "and no sentences; ask your own sentences without --heldout"
            )
        questions += heldout_questions(model.vocabulary, store.heldout, _HELDOUT.value)
    return functools.partial(_answer, model, questions)


def _answer(model: Trained, questions: Sequence[Question]) -> int:
    console = rich.console.Console(highlight=False, soft_wrap=True)
    top = min(_TOP.value, model.vocabulary.size - len(model.vocabulary.special_ids))
    for asked, guesses in zip(questions, guess(model, questions, top), strict=True):
        console.print(rich.text.Text(asked.text, "bold"))
        for guesses_of_mask, answer in zip(guesses, asked.answers, strict=True):
            console.print(_line(guesses_of_mask, answer))
    return 0


def _line(guesses: Sequence[Guess], answer: str) -> rich.text.Text:
    shown = [
        rich.text.Text.assemble(
            (_word(one.piece), "bold green" if one.piece == answer else "cyan"),
            f" {one.probability:.0%}",
        )
        for one in guesses
    ]
    if answer:
        pieces = [one.piece for one in guesses]
        place = f", guess {pieces.index(answer) + 1}" if answer in pieces else ""
        shown.append(rich.text.Text(f"it was: {_word(answer)}{place}", "dim"))
    return rich.text.Text("  ") + rich.text.Text("   ").join(shown)


def _word(piece: str) -> str:
    """A piece without SentencePiece's mark for the space before a word."""
    return piece.removeprefix(WORD_START)


def main() -> None:
    """Entry point."""
    command_line.run(_prepare, USAGE, way_on="nothing was changed")


if __name__ == "__main__":
    main()
