"""Guess the words that [MASK] hides: python -m bert_jax.fill_mask --checkpoint=CK "The [MASK] is"

    --checkpoint=CK    orbax:WORKDIR[@STEP], hf:DIR or google:PREFIX, or the place alone
    --heldout=5        also take 5 sentences that the run of CK held out, hide a word of each, and
                       show which it was
    --top=5            guesses for each [MASK]

A sentence may have several masks; guesses are tokens of the vocabulary, most of them words.
"""

import pathlib
import sys
from collections.abc import Sequence

from absl import flags

from bert_jax.runtime import absl_cli as cli
from data_pipeline.io.refused import Refused

_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", "", "orbax:WORKDIR[@STEP], hf:DIR or google:PREFIX, or the place alone"
)
_WORKDIR = flags.DEFINE_string("workdir", "", "another name for --checkpoint=orbax:WORKDIR")
_HELDOUT = flags.DEFINE_integer(
    "heldout", 0, "held-out sentences of each store to hide a word of", lower_bound=0
)
_TOP = flags.DEFINE_integer("top", 5, "guesses for each [MASK]", lower_bound=1)

USAGE = "python -m bert_jax.fill_mask --checkpoint=CK 'A sentence with one [MASK] in it.' ..."

if __name__ == "__main__":
    cli.check_command_line(USAGE)

import jax
import rich.text

from bert_jax.inference.fill_mask import (
    Question,
    format_guesses,
    guess_tokens,
    hide_heldout_words,
    open_stores_of_run,
    read_question,
)
from bert_jax.interop import load
from bert_jax.interop.pretrained import PlacedModel, place_masked_lm, refuse_causal
from data_pipeline.cli.live_line import LINE
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.cli.terminal import make_console, wrap_text


def _main(log: LibraryLog, sentences: list[str]) -> int:
    with cli.preparing():
        address = _choose_address()
        if not sentences and _HELDOUT.value == 0:
            raise Refused(f"there is nothing to guess: give sentences with [MASK]; {USAGE}")
        log.hold()
        stores = (
            open_stores_of_run(address, f"--heldout is {_HELDOUT.value}") if _HELDOUT.value else ()
        )
        with LINE.doing(f"reading {address}"):
            checkpoint = load.load_masked_lm(address)
            refuse_causal(checkpoint, "and guesses no [MASK]: give a masked language model")
            model = place_masked_lm(checkpoint, jax.local_devices()[:1])
        questions = [read_question(model, sentence) for sentence in sentences]
        for store in stores:
            questions += hide_heldout_words(model.vocabulary, store.heldout, _HELDOUT.value)
    return _answer(model, questions)


def _choose_address() -> str:
    checkpoint, workdir = _CHECKPOINT.value, _WORKDIR.value
    if checkpoint and workdir:
        raise Refused("--workdir is another name for --checkpoint; give one of them")
    if not checkpoint and not workdir:
        raise Refused(f"--checkpoint is missing: a workdir, hf:DIR or google:PREFIX; {USAGE}")
    if workdir and pathlib.Path(workdir).is_dir():
        scheme, _ = load.split_address(workdir)
        if scheme != load.ORBAX:
            raise Refused(
                f"--workdir={workdir} is no run of bert_jax; give --checkpoint={scheme}:{workdir}"
            )
    return checkpoint or f"{load.ORBAX}:{workdir}"


def _answer(model: PlacedModel, questions: Sequence[Question]) -> int:
    console = make_console(highlight=False, soft_wrap=True)
    top = min(_TOP.value, model.vocabulary.size - len(model.vocabulary.special_ids))
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
    return cli.run(_main, USAGE, "nothing was changed", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
