"""Frame the token ids of a text or a pair as a row, by the template of a vocabulary."""

from collections.abc import Sequence
from typing import NamedTuple

from data_pipeline.io import Refused
from data_pipeline.spec.schema import GOOGLE
from data_pipeline.vocab.template import A, Template


class FramedRow(NamedTuple):
    """Hold a row of T tokens."""

    token_ids: Sequence[int]  # T
    second_start: int  # position of the second text's first token; T without a second text
    # T; by default 0, and 1 from the second text on.
    segment_ids: Sequence[int] = ()
    cls_position: int = 0


def truncate_pair(a_tokens: int, b_tokens: int, most: int, rule: str = GOOGLE) -> tuple[int, int]:
    """Return how many tokens of each text remain, `most` in all: the longer loses its end first.

    If both lose tokens and `most` is odd, Google's rule gives the odd token to the first text;
    transformers' rule gives it to the longer text, or to the second if both are equally long.

    Source: run_classifier.py@eedf5716ce _truncate_seq_pair; tokenizers 0.23 longest_first.
    """
    if a_tokens + b_tokens <= most:
        return a_tokens, b_tokens
    is_odd_in_a = rule == GOOGLE or a_tokens > b_tokens
    share_b = most // 2 if is_odd_in_a else most - most // 2
    kept_b = min(b_tokens, max(share_b, most - a_tokens))
    return min(a_tokens, most - kept_b), kept_b


def frame(
    a_ids: Sequence[int],
    b_ids: Sequence[int] | None,
    template: Template,
    max_seq_length: int,
    pair_truncation: str = GOOGLE,
) -> FramedRow:
    """Frame a text or a pair as a row of at most max_seq_length tokens, special ones included.

    If b_ids is None, there is a single text. pair_truncation is the rule of truncate_pair.

    Raises:
      Refused: the special tokens alone are more than max_seq_length.

    Source: run_classifier.py@eedf5716ce convert_single_example.
    """
    specials = template.count_specials(b_ids is not None)
    most = max_seq_length - specials
    if most < 0:
        raise Refused(
            f"max_seq_length is {max_seq_length}, and a {'text' if b_ids is None else 'pair'} has "
            f"{specials} special tokens; give {specials + 1} or more"
        )
    if b_ids is None:
        texts = [a_ids[:most]]
    else:
        a, b = truncate_pair(len(a_ids), len(b_ids), most, pair_truncation)
        texts = [a_ids[:a], b_ids[:b]]
    token_ids: list[int] = []
    segment_ids: list[int] = []
    starts: list[int] = []
    cls_position = None
    for part, segment in template.parts(b_ids is not None):
        if isinstance(part, str):
            starts.append(len(token_ids))
            token_ids.extend(texts[part != A])
        else:
            if part == template.cls_id and cls_position is None:
                cls_position = len(token_ids)
            token_ids.append(part)
        segment_ids += [segment] * (len(token_ids) - len(segment_ids))
    second = len(token_ids) if b_ids is None else starts[1]
    return FramedRow(token_ids, second, segment_ids, cls_position or 0)
