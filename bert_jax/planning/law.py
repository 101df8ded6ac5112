"""Fit and read a scaling law: the held-out masked LM loss by model size, tokens and repetition.

    loss = E + A / N^a + B / D'^b        D' = U + U R (1 - exp(-(D / U - 1) / R))

N counts the parameters of the encoder's layers (embeddings and heads left out), D the tokens read,
U the unique tokens. D' is the effective number of tokens: the first pass counts in full, and later
passes less and less, with the limit U (1 + R).

An interval includes the uncertainty of the constants, so it widens outside the range of the fitted
points.

Source: Hoffmann et al. 2022 (arXiv 2203.15556), section 3.3; Muennighoff et al. 2023 (arXiv
2305.16264), section 3.1.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from bert_jax.config import ModelConfig
from bert_jax.model.flops import count_layer_weights
from data_pipeline.io import Refused, small_files
from data_pipeline.io.small_files import DamagedFile, parse_record

LADDER = "ladder.json"  # the file of bert_jax.ladder's workdir: {"law": ..., "rungs": [...]}
CONFIDENCE = 0.9  # an interval's

MIN_POINTS, MAX_POINTS = 4, 1000

# Ranges that a file may have; predictions take logarithms, which must not overflow.
Amount = Annotated[float, 1e-30, 1e30]
_Factor = Annotated[float, 1e-30, 1e60]
_Exponent = Annotated[float, 1e-30, 3.0]
_Number = Annotated[float, -1e6, 1e6]


class Point(NamedTuple):
    """Hold a finished run: its size and tokens, and its held-out masked LM loss in nats."""

    parameters: Amount  # the encoder layers'
    tokens: Amount  # read, without padding
    unique_tokens: Amount  # tokens of the store's training split
    loss: Amount


class Prediction(NamedTuple):
    """Hold a predicted loss in nats, with its interval of CONFIDENCE."""

    loss: float
    low: float
    high: float


_IS_LOGARITHM = (True, True, False, True, False, True)  # places in Constants.to_vector


@dataclasses.dataclass(frozen=True)
class Constants:
    """Hold the constants of the law: E, A, a, B, b and R in the module's docstring."""

    irreducible: _Factor
    size_factor: _Factor
    size_exponent: _Exponent
    data_factor: _Factor
    data_exponent: _Exponent
    repeats: _Factor

    def to_vector(self) -> np.ndarray:
        """Return (log E, log A, a, log B, b, log R), in the order of the covariance."""
        pairs = zip(dataclasses.astuple(self), _IS_LOGARITHM, strict=True)
        return np.array([math.log(value) if is_log else value for value, is_log in pairs])

    @classmethod
    def from_vector(cls, vector: np.ndarray) -> "Constants":
        """Return the constants of a vector."""
        pairs = zip(map(float, vector), _IS_LOGARITHM, strict=True)
        return cls(*(math.exp(value) if is_log else value for value, is_log in pairs))


@dataclasses.dataclass(frozen=True)
class Law:
    """Predict losses on a kind of text, by constants fitted to points."""

    corpus: str  # the text of the points
    vocabulary: str  # its kind and size
    is_own: bool  # the points are of the user's own text, not ours
    constants: Constants
    covariance: tuple[tuple[_Number, ...], ...]  # covariance of Constants.to_vector
    noise: Annotated[float, 0, 1e6]  # deviation of log loss between runs
    degrees: Annotated[float, 1, 1e6]  # degrees of freedom of the noise
    transfer: Annotated[float, 0, 1e6]  # deviation of log loss on other text and vocabulary
    points: tuple[Point, ...]
    residuals: tuple[_Number, ...]  # log of measured over fitted loss, of each point

    def predict(self, parameters: float, tokens: float, unique_tokens: float) -> Prediction:
        """Predict the loss of a run with its interval, wider the further it is from the points."""
        run = Point(parameters, tokens, unique_tokens, loss=1.0)
        (log_loss,), jacobian = compute_log_losses(self.constants.to_vector(), [run])
        gradient = jacobian[0]
        of_constants = float(gradient @ np.array(self.covariance) @ gradient)
        deviation = math.sqrt(of_constants + self.noise**2 + self.transfer**2)
        # Beyond e^50 an interval says nothing anyway.
        reach = min(_student_t(self.degrees) * deviation, 50.0)
        return Prediction(*(float(math.exp(log_loss + shift)) for shift in (0.0, -reach, reach)))

    def describe(self) -> str:
        """Describe the origin and the reliability of the constants in a sentence."""
        sizes = [point.parameters for point in self.points]
        reads = [point.tokens for point in self.points]
        measured = (
            f"{len(self.points)} runs of {_describe_range(sizes)} layer parameters on "
            f"{_describe_range(reads)} tokens"
        )
        if self.is_own:
            return (
                f"the law is fitted to {measured} of {self.corpus} ({self.vocabulary}), which it "
                f"meets within {max(map(abs, self.residuals)):.1%}"
            )
        return (
            f"the constants are ours, not of your text: {measured} of {self.corpus} "
            f"({self.vocabulary}); on another text the loss may differ by "
            f"{math.expm1(_student_t(self.degrees) * self.transfer):.0%} for that alone, and "
            "python -m bert_jax.ladder measures yours"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the law as JSON; from_json reads it."""
        return dataclasses.asdict(self) | {"points": [point._asdict() for point in self.points]}


def read_ladder(folder: pathlib.Path) -> Law:
    """Read the law of a finished ladder.

    Raises:
      Refused: the folder has none, its points did not fit, or the file is damaged.
    """
    path = folder / LADDER
    try:
        content = small_files.read_object(path, folder)
    except FileNotFoundError:
        raise Refused(
            f"{folder} has no {LADDER}; give the workdir of python -m bert_jax.ladder that ended"
        ) from None
    if content.get("law") is None:
        reason = str(content.get("error", "it has no law"))
        raise Refused(f"{path} predicts nothing: {reason:.500}")
    return from_json(small_files.field(content, "law", dict, path), path)


def from_json(content: Mapping[str, Any], name: object) -> Law:
    """Rebuild a law that to_json wrote; name is its file's.

    Raises:
      DamagedFile: a key is missing, a number is not what a law has.
    """
    law = parse_record(content, Law, name)
    if not MIN_POINTS <= len(law.points) <= MAX_POINTS or len(law.residuals) != len(law.points):
        raise DamagedFile(
            f"{name}: a law has {MIN_POINTS} to {MAX_POINTS} points, and a residual of each"
        )
    rows = law.covariance
    if [len(row) for row in rows] != [6] * 6 or not _is_covariance(np.array(rows)):
        raise DamagedFile(f"{name}: the covariance does not belong to 6 constants")
    return law


def _is_covariance(matrix: np.ndarray) -> bool:
    if not np.allclose(matrix, matrix.T, rtol=1e-6, atol=1e-12):
        return False
    values = np.linalg.eigvalsh(matrix)
    return bool(values[0] >= -1e-9 * max(values[-1], 1e-9))


def count_effective_tokens(
    tokens: np.ndarray, unique_tokens: np.ndarray, repeats: float
) -> np.ndarray:
    """Count the effective tokens of repeated reading: D' in the module's docstring."""
    unique = np.minimum(tokens, unique_tokens)
    return unique * (1.0 - repeats * np.expm1(-(tokens / unique - 1.0) / repeats))


def compute_log_losses(
    vector: np.ndarray, points: Sequence[Point]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the log loss of each point by the law, and its derivatives by the constants.

    Shapes: float[6] -> float[N], float[N,6].
    """
    log_e, log_a, size_exponent, log_b, data_exponent, log_r = vector
    columns = np.array(points, np.float64).T
    log_size, tokens, unique = np.log(columns[0]), columns[1], np.minimum(columns[1], columns[2])
    repeats = np.exp(log_r)
    worth = count_effective_tokens(tokens, unique, repeats)
    log_worth = np.log(worth)
    of_size = np.exp(log_a - size_exponent * log_size)
    of_data = np.exp(log_b - data_exponent * log_worth)
    loss = np.exp(log_e) + of_size + of_data
    passes = (tokens / unique - 1.0) / repeats
    # The derivative of log D' by log R.
    by_repeats = repeats * unique / worth * (-np.expm1(-passes) - passes * np.exp(-passes))
    by_constant = (
        *(np.full_like(loss, np.exp(log_e)), of_size, -of_size * log_size),
        *(of_data, -of_data * log_worth, -of_data * data_exponent * by_repeats),
    )
    return np.log(loss), np.stack(by_constant, axis=1) / loss[:, None]


def _student_t(degrees: float) -> float:
    """Return the half width of an interval of CONFIDENCE, in standard deviations."""
    from scipy.special import stdtrit  # imported here: only a prediction needs it

    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))


def _describe_range(values: Sequence[float]) -> str:
    low, high = count_in_words(min(values)), count_in_words(max(values))
    return low if low == high else f"{low} to {high}"


def count_in_words(number: float) -> str:
    """Write a count with three digits, as 85.1M."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number / size >= 0.9995:  # three digits round it to 1
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"


def count_layer_parameters(model: ModelConfig) -> int:
    """Count the weights of the layers' matrices, without biases and norms (about 0.1%)."""
    return model.num_hidden_layers * count_layer_weights(model)


# Most layer parameters per token of text for which a loss is predicted, or twice the most of the
# law's points if that is more. Laws do not model the overfitting of large models on repeated text:
# 10.6M parameters on 0.19M tokens ended 19% above their prediction (docs/results/training.md). The
# best encoder on 10 million words in 2023 had 1.5 (12 x 384, ELC-BERT, arXiv 2311.02265).
_PARAMETERS_PER_TOKEN = 10.0


def count_most_parameters(unique_tokens: float, ratios: Sequence[float]) -> float:
    """Return the most layer parameters for which a law holds on a text of unique_tokens.

    ratios are the layer parameters per unique token of the law's points.
    """
    return unique_tokens * max(_PARAMETERS_PER_TOKEN, 2 * max(ratios))
