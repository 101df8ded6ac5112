"""Split SQuAD files into train and dev: python -m benchmarks.squad_split --output=DIR FILE ...

Joins files of SQuAD 1.1 or 2.0, plain or compressed, and splits them by paragraph, so that no text
of dev was learned from: a text goes to dev where the hash of its letters and digits says so. A text
that stands in several files is one paragraph, and a question that is asked of it twice is kept
once. Writes train-v1.1.json and dev-v1.1.json with the questions that have an answer, and the same
of v2.0 with all of them.
"""

import argparse
import hashlib
import json
import pathlib
from collections.abc import Iterable
from typing import Any

from bert_jax.tasks.squad.data import Paragraph, SquadQuestion, read_squad

Paragraphs = dict[str, dict[str, Any]]  # key: the letters and digits of the text


def letters(text: str) -> str:
    """Normalize a text: drop case, white space and punctuation."""
    return "".join(filter(str.isalnum, text.casefold()))


def join(paragraphs: Iterable[Paragraph], has_unanswerable: bool) -> Paragraphs:
    """Collect the texts and questions of all paragraphs, each once, in order."""
    entries: Paragraphs = {}
    for paragraph in paragraphs:
        entry = entries.setdefault(letters(paragraph.context), {"context": "", "qas": []})
        # Answers are positions in the text, so one spelling of a text is kept.
        if entry["context"] not in ("", paragraph.context):
            continue
        entry["context"] = paragraph.context
        asked = {letters(qa["question"]) for qa in entry["qas"]}
        entry["qas"] += [
            make_record(question)
            for question in paragraph.questions
            if letters(question.text) not in asked and (question.answers or has_unanswerable)
        ]
    return {key: entry for key, entry in entries.items() if entry["qas"]}


def make_record(question: SquadQuestion) -> dict[str, Any]:
    """Return a question as a JSON object of SQuAD's files."""
    return {
        "id": question.id,
        "question": question.text,
        "answers": [vars(answer) for answer in question.answers],
        "is_impossible": not question.answers,
    }


def is_dev(key: str, dev_share: float) -> bool:
    """Return whether a text goes to dev, whatever else is in the files."""
    number = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
    return number < dev_share * 2**64


def main() -> None:
    """Write the four files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="folder to write into")
    parser.add_argument("--dev_share", type=float, default=0.1, help="of the texts")
    parser.add_argument("files", type=pathlib.Path, nargs="+")
    arguments = parser.parse_args()
    paragraphs = [entry for path in arguments.files for entry in read_squad(path).paragraphs]
    arguments.output.mkdir(parents=True, exist_ok=True)
    for version in ("1.1", "2.0"):
        texts = join(paragraphs, has_unanswerable=version == "2.0")
        for split in ("train", "dev"):
            of_split = [
                entry
                for key, entry in texts.items()
                if is_dev(key, arguments.dev_share) == (split == "dev")
            ]
            path = arguments.output / f"{split}-v{version}.json"
            document = {"version": version, "data": [{"title": "", "paragraphs": of_split}]}
            path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
            questions = sum(len(entry["qas"]) for entry in of_split)
            print(f"{path}: {questions:,} questions about {len(of_split):,} texts")


if __name__ == "__main__":
    main()
