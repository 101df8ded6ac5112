"""Gold answers of SQuAD through run_squad.py's positions and back, by transformers' copy of it.

Runs in an environment with transformers; started by squad_round_trip.py. Reads a JSON object with
`vocab` and `answers`, a list of [words, first word, last word, answer], and writes the texts.
"""

import json
import sys

from transformers import BertTokenizer
from transformers.data.metrics.squad_metrics import get_final_text
from transformers.data.processors.squad import _improve_answer_span


def text_of(tokenizer: BertTokenizer, words: list[str], first: int, last: int, answer: str) -> str:
    """Return the text that the positions of an answer give back."""
    pieces, word_of = [], []
    for number in range(first, last + 1):
        of_word = tokenizer.tokenize(words[number])
        pieces += of_word
        word_of += [number] * len(of_word)
    start, end = _improve_answer_span(pieces, 0, len(pieces) - 1, tokenizer, answer)
    prediction = " ".join(pieces[start : end + 1]).replace(" ##", "").replace("##", "")
    original = " ".join(words[word_of[start] : word_of[end] + 1])
    return get_final_text(" ".join(prediction.split()), original, do_lower_case=True)


def main() -> None:
    """Entry point."""
    asked = json.load(sys.stdin)
    tokenizer = BertTokenizer(asked["vocab"])
    json.dump([text_of(tokenizer, *answer) for answer in asked["answers"]], sys.stdout)


if __name__ == "__main__":
    main()
