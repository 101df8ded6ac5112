"""Guess the words hidden by [MASK]: python -m bert_jax.fill_mask --checkpoint=CK "The [MASK] is"

    --checkpoint=CK    orbax:WORKDIR, hf:DIR or google:PREFIX, or the place alone
    --heldout=5    take 5 sentences that the run of CK never trained on as well, hide a word of
                   each, and show what it was
    --top=5        guesses shown for each [MASK]

A sentence may have several of them; guesses are pieces of the vocabulary, most of them words.
"""

import functools
import pathlib
from collections.abc import Callable, Sequence

import rich.text
from absl import flags

from bert_jax import command_line, masked_lm, pretrained, store_scores
from bert_jax.feed import open_store, short_digest
from bert_jax.mask_filling import Guess, Question, guess, heldout_questions, question
from bert_jax.masked_lm import MaskedLm
from data_pipeline import terminal_console
from data_pipeline.library_log import LibraryLog
from data_pipeline.live_line import LINE
from data_pipeline.store import EXAMPLES, Store
from data_pipeline.vocab import WORD_START
from data_pipeline.wrapping import wrapped

_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", "", "orbax:WORKDIR[@STEP], hf:DIR or google:PREFIX, or the place alone"
)
_WORKDIR = flags.DEFINE_string("workdir", "", "another name for --checkpoint=orbax:WORKDIR")
_HELDOUT = flags.DEFINE_integer("heldout", 0, "held-out sentences to hide a word of")
_TOP = flags.DEFINE_integer("top", 5, "guesses for each [MASK]")

USAGE = "python -m bert_jax.fill_mask --checkpoint=CK 'A sentence with one [MASK] in it.' ..."


def _prepare(log: LibraryLog, sentences: list[str]) -> Callable[[], int]:
    address = _address()
    if _HELDOUT.value < 0:
        raise ValueError(f"--heldout is {_HELDOUT.value}; it must be 0 or more")
    if not sentences and _HELDOUT.value == 0:
        raise ValueError(f"there is nothing to guess: give sentences with [MASK]; {USAGE}")
    if _TOP.value < 1:
        raise ValueError(f"--top is {_TOP.value}; it must be 1 or more")
    log.hold()
    store = _store_of(address) if _HELDOUT.value else None
    with LINE.doing(f"reading {address}"):
        model = masked_lm.load(address)
    questions = [question(model, sentence) for sentence in sentences]
    if store is not None:
        questions += heldout_questions(model.vocabulary, store.heldout, _HELDOUT.value)
    return functools.partial(_answer, model, questions)


def _address() -> str:
    checkpoint, workdir = _CHECKPOINT.value, _WORKDIR.value
    if checkpoint and workdir:
        raise ValueError("--workdir is another name for --checkpoint; give one of them")
    if not checkpoint and not workdir:
        raise ValueError(f"--checkpoint is missing: a workdir, hf:DIR or google:PREFIX; {USAGE}")
    if workdir and pathlib.Path(workdir).is_dir():
        scheme, _ = pretrained.split(workdir)
        if scheme != pretrained.ORBAX:
            raise ValueError(
                f"--workdir={workdir} is no run of bert_jax; give --checkpoint={scheme}:{workdir}"
            )
    return checkpoint or f"{pretrained.ORBAX}:{workdir}"


def _store_of(address: str) -> Store:
    """The store that the run of a checkpoint was trained on.

    Raises:
      ValueError: it is no run, the store is another by now, or it has no sentences.
    """
    run = store_scores.run_of(address)
    if run is None or run.converted_from:
        raise ValueError(
            f"--heldout is {_HELDOUT.value}, of what a run held out, and {address} is no run of "
            "bert_jax; ask your own sentences without --heldout"
        )
    store = open_store(run.config.data)
    if short_digest(store) != run.store_digest:
        raise ValueError(
            f"{store.directory} is not the store that the run of {address} was trained "
            "on; put that one back, or ask your own sentences without --heldout"
        )
    if store.kind == EXAMPLES:
        raise ValueError(
            f"--heldout is {_HELDOUT.value}, but {store.directory} holds ready-made examples "
            "and no sentences; ask your own sentences without --heldout"
        )
    return store


def _answer(model: MaskedLm, questions: Sequence[Question]) -> int:
    console = terminal_console.console(highlight=False, soft_wrap=True)
    top = min(_TOP.value, model.vocabulary.size - len(model.vocabulary.special_ids))
    with LINE.doing("guessing"):
        answered = list(zip(questions, guess(model, questions, top), strict=True))
    for asked, guesses in answered:
        for line in wrapped(asked.text, console.width) if console.is_terminal else [asked.text]:
            console.print(rich.text.Text(line, "bold"))
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
