"""How many gold answers come back from their positions: python -m benchmarks.squad_round_trip.

    python -m benchmarks.squad_round_trip --vocab=vocab.txt --python=ENV/bin/python FILE ...

Every answer of SQuAD's files becomes pieces and then text again: by the characters of the pieces,
as bert_jax/tasks does, and by words and run_squad.py's heuristics, which transformers has, in the
environment ENV. Counts the answers that come back to the letter, and those that do once
normalised as for exact match.
"""

import argparse
import json
import pathlib
import subprocess
from collections.abc import Sequence

from bert_jax.tasks.squad.data import Answer, find_answer_span, read_squad
from bert_jax.tasks.squad.metrics import exact_match
from bert_jax.tasks.squad.windows import find_pieces
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab.offsets import PieceAligner

Gold = tuple[str, Answer]  # a context and an answer in it


def golds(paths: Sequence[pathlib.Path]) -> list[Gold]:
    """Every answer of the files that stands where they say, each place once."""
    found: dict[tuple[str, int, str], Gold] = {}
    for path in paths:
        for paragraph in read_squad(path).paragraphs:
            for question in paragraph.questions:
                for answer in question.answers:
                    if find_answer_span(paragraph.context, answer):
                        key = paragraph.context, answer.answer_start, answer.text
                        found[key] = paragraph.context, answer
    return list(found.values())


def by_characters(answers: Sequence[Gold], vocab: pathlib.Path) -> list[str]:
    """Return the answers as bert_jax/tasks cuts them out."""
    aligner = PieceAligner(load_vocabulary(vocab))
    texts = []
    for context, answer in answers:
        pieces, span = aligner.encode(context), find_answer_span(context, answer)
        first, last = find_pieces(pieces, *span)
        texts.append(context[pieces.starts_T[first] : pieces.ends_T[last]])
    return texts


def by_words(answers: Sequence[Gold], vocab: pathlib.Path, python: str) -> list[str]:
    """Return the answers as run_squad.py gives them."""
    asked = []
    for context, answer in answers:
        before = len(context[: answer.answer_start + 1].split()) - 1
        end = answer.answer_start + len(answer.text)
        asked.append([context.split(), before, len(context[:end].split()) - 1, answer.text])
    worker = pathlib.Path(__file__).parent / "parity_runs" / "squad_round_trip_worker.py"
    done = subprocess.run(
        [python, str(worker)],
        input=json.dumps({"vocab": str(vocab), "answers": asked}),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=pathlib.Path, required=True, help="an uncased vocab.txt")
    parser.add_argument("--python", required=True, help="of an environment with transformers")
    parser.add_argument("files", type=pathlib.Path, nargs="+")
    arguments = parser.parse_args()
    answers = golds(arguments.files)
    ways = {
        "by characters": by_characters(answers, arguments.vocab),
        "by words": by_words(answers, arguments.vocab, arguments.python),
    }
    for name, texts in ways.items():
        pairs = [(answer.text, text) for (_, answer), text in zip(answers, texts, strict=True)]
        exactly = sum(gold == text for gold, text in pairs)
        matching = sum(exact_match(gold, text) == 1 for gold, text in pairs)
        print(f"{name}: of {len(pairs):,} answers {exactly:,} to the letter, {matching:,} matching")
        for gold, text in [pair for pair in pairs if not exact_match(*pair)][:6]:
            print(f"    {gold!r} came back as {text!r}")


if __name__ == "__main__":
    main()
