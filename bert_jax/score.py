"""Score a file of predictions as the task's official script does.

squad: the numbers of evaluate-v1.1.py or evaluate-v2.0.py (the data decide which) under their
names, as JSON in percent; with --null_odds also the numbers at the best threshold. ner:
conlleval's lines, for a file whose last two columns are the gold and the predicted tags. swag and
codah: accuracy, for a file with the columns pred and label.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence

from bert_jax.runtime import cli
from data_pipeline.cli.flags import Command, flag
from data_pipeline.io import Refused

SQUAD, NER, CHOICES = "squad", "ner", ("swag", "codah")
_OFFICIAL_THRESHOLD = 1.0  # the default of evaluate-v2.0.py


@dataclasses.dataclass(frozen=True)
class ScoreFlags:
    """Declare the flags."""

    task: str | None = flag(
        None, "whose predictions", choices=(SQUAD, NER, *CHOICES), is_required=True
    )
    predictions: str = flag(
        "", "file to score; for squad plain or compressed", metavar="FILE", is_required=True
    )
    data: str = flag("", "squad only: SQuAD's file with the right answers", metavar="FILE")
    null_odds: str = flag(
        "", "SQuAD 2.0 only: file of the null odds of each question", metavar="FILE"
    )
    null_threshold: float | None = flag(
        None, "SQuAD 2.0 only: questions with higher null odds get no answer; 1.0 if not set"
    )


COMMAND = Command(
    "bert_jax.score",
    __doc__,
    ScoreFlags,
    "python -m bert_jax.score --task=squad --data=dev-v2.0.json --predictions=predictions.json "
    "--null_odds=null_odds.json",
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

from bert_jax.tasks import multiple_choice
from bert_jax.tasks.ner import conlleval, data
from bert_jax.tasks.ner.conlleval import OUTSIDE, EntityScore, score_entities, split_tag
from bert_jax.tasks.squad import metrics
from data_pipeline.cli.live_line import escape
from data_pipeline.cli.stderr_log import LibraryLog


def read_score(path: pathlib.Path) -> EntityScore:
    """Score a file as conlleval does; its columns may also be separated by tabs.

    A -DOCSTART- line is not a word here, but is for conlleval; entities are the same.
    """
    gold: list[list[str]] = [[]]
    predicted: list[list[str]] = [[]]
    for number, row in data.read_columns(path):
        if not row:
            gold.append([])
            predicted.append([])
            continue
        if len(row) < 3:
            raise Refused(
                f"{path} row {number} has {len(row)} columns; a file to score has a word and, in "
                "the last two, its gold tag and the predicted one, as predictions/dev.conll of a "
                "run of ner"
            )
        for tag, tags in zip(map(str.strip, row[-2:]), (gold, predicted), strict=True):
            if tag != OUTSIDE and (split_tag(tag)[0] not in ("B", "I") or not split_tag(tag)[1]):
                raise Refused(
                    f"{path} row {number} has the tag {tag!r:.60}; conlleval's rules are for O, "
                    "and B- or I- and a type, in the last two columns"
                )
            tags[-1].append(tag)
    score = score_entities(gold, predicted)
    if not score.words:
        raise Refused(f"{path} has no words to score")
    return score


def _main(log: LibraryLog, flags: ScoreFlags) -> int:
    with cli.preparing():
        text = _score(flags, log)
    print(escape(text))
    return 0


def _score(flags: ScoreFlags, log: LibraryLog) -> str:
    task = flags.task
    if flags.null_threshold is not None and not flags.null_odds:
        raise Refused(
            f"--null_threshold is {flags.null_threshold}, but there are no odds to "
            "compare it with; give --null_odds=FILE of SQuAD 2.0 too, or leave it out"
        )
    predictions = pathlib.Path(flags.predictions)
    if task == SQUAD:
        if not flags.data:
            raise Refused("--data is missing: the file of SQuAD with the right answers")
        odds = pathlib.Path(flags.null_odds) if flags.null_odds else None
        threshold = _OFFICIAL_THRESHOLD if flags.null_threshold is None else flags.null_threshold
        numbers, notes = metrics.score_file(pathlib.Path(flags.data), predictions, odds, threshold)
        for note in notes:
            log.say(note)
        return json.dumps(numbers, indent=2)
    if flags.data or flags.null_odds:
        raise Refused(
            f"--data and --null_odds are for {SQUAD}; a file of {task} has the answers itself"
        )
    if not predictions.is_file():
        raise Refused(f"{predictions} is not a file; give the path of one")
    if task == NER:
        return conlleval.format_report(read_score(predictions))
    return json.dumps(multiple_choice.read_accuracy(predictions), indent=2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(COMMAND, _main, "nothing was changed", argv)


if __name__ == "__main__":
    sys.exit(main())
