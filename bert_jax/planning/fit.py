"""Fit a scaling law to few points, such as a ladder or BERT's published results.

A ladder has 6 to 12 points and the law 6 constants. Each constant therefore has a prior, taken from
published laws; the fit is the mode of the posterior, with Laplace's covariance. Residuals are
differences of log losses, and outliers count less (Huber).

Source: Hoffmann et al. 2022 (arXiv 2203.15556), section 3.3 and appendix D.3.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np

from bert_jax.planning.law import (
    MAX_POINTS,
    MIN_POINTS,
    Constants,
    Law,
    Point,
    compute_log_losses,
    count_in_words,
)
from data_pipeline.io import Refused

# Standard deviations of the residuals, as shares of the loss. Nothing is predicted above MAX_NOISE;
# USUAL_NOISE is between seeds, 0.9 to 2% for small models (docs/results/training.md).
MAX_NOISE, USUAL_NOISE = 0.03, 0.01
_USUAL_WEIGHT = 2.0  # USUAL_NOISE counts as much as so many residuals
_HUBER = 1.5  # a residual beyond so many deviations counts linearly

# Means and deviations of the priors. Exponents: 0.34 and 0.28 of Hoffmann et al., 0.35 and 0.37 of
# the same points by Besiroglu et al. 2024 (arXiv 2404.10102), for causal models.
# R: 15.4 for causal models (Muennighoff et al.), about 500 for masked diffusion, which also
# draws the share of masked words (Prabhudesai et al. 2025, arXiv 2507.15857); new masks of a
# constant share in each pass lie between: their geometric mean, 90% from one to the other.
_SIZE_EXPONENT, _DATA_EXPONENT = (0.35, 0.12), (0.33, 0.12)
_LOG_REPEATS = (math.log(88.0), 1.06)
# E: below the 1.17 nats that BERT-Large reaches (table 6 of Devlin et al. 2019).
_LOG_IRREDUCIBLE = (math.log(0.9), 0.5)
# Each of the other two terms, at the points' geometric mean, as a share of their loss.
_LOG_TERM = (math.log(0.3), 1.0)

# Initial shares of the loss for E and for the size's term; each pair begins a fit.
_STARTS = ((0.5, 0.3), (0.2, 0.5), (0.5, 0.1), (0.2, 0.2))

# Bounds of Constants.to_vector, far outside any law, so that every step of the search is finite.
_BOUNDS = np.array([[-5.0, -50.0, 0.02, -50.0, 0.02, 0.0], [3.0, 60.0, 2.0, 60.0, 2.0, 12.0]])

Known = tuple[Sequence[float], float, float]  # weights of constants; their sum's mean, deviation


# Rows of Known: weights float[rows,6], means and deviations float[rows].
_Prior = tuple[np.ndarray, np.ndarray, np.ndarray]


def _make_prior(points: Sequence[Point], known: Sequence[Known]) -> _Prior:
    """Build the prior of the constants; each of `known` adds a row."""
    log_size, log_tokens, _, log_loss = _average_logs(points)
    term = _LOG_TERM[0] + log_loss
    every = [
        ((1, 0, 0, 0, 0, 0), *_LOG_IRREDUCIBLE),
        ((0, 1, -log_size, 0, 0, 0), term, _LOG_TERM[1]),
        ((0, 0, 1, 0, 0, 0), *_SIZE_EXPONENT),
        ((0, 0, 0, 1, -log_tokens, 0), term, _LOG_TERM[1]),
        ((0, 0, 0, 0, 1, 0), *_DATA_EXPONENT),
        ((0, 0, 0, 0, 0, 1), *_LOG_REPEATS),
        *known,
    ]
    weights, means, deviations = zip(*every, strict=True)
    return np.array(weights, np.float64), np.array(means), np.array(deviations)


def _average_logs(points: Sequence[Point]) -> list[float]:
    """Return the mean logarithm of each field of the points."""
    return [float(mean) for mean in np.log(np.array(points, np.float64)).mean(axis=0)]


def fit(
    points: Sequence[Point],
    corpus: str,
    vocabulary: str,
    is_own: bool = True,
    transfer: float = 0.0,
    known: Sequence[Known] = (),
) -> Law:
    """Fit the law to points; `known` adds rows to the prior.

    Raises:
      Refused: there are too few points, sizes or token counts, or no law of this form fits; the
        message then has the residual of each point.
    """
    _check_points(points, has_known_rows=bool(known))
    prior = _make_prior(points, known)
    noise, degrees = USUAL_NOISE, _USUAL_WEIGHT
    log_losses = np.log([point.loss for point in points])
    starts = [_make_start(points, *shares) for shares in _STARTS]
    for _ in range(4):  # noise and mode depend on each other
        vector, jacobian = _find_mode(points, prior, noise, starts)
        starts = [vector]
        covariance = np.linalg.inv(jacobian.T @ jacobian)
        fitted, by_constants = compute_log_losses(vector, points)
        residuals = log_losses - fitted
        taken = np.trace(by_constants @ covariance @ by_constants.T) / noise**2
        degrees = max(len(points) - float(taken), 0.0) + _USUAL_WEIGHT
        squares = float(residuals @ residuals) + _USUAL_WEIGHT * USUAL_NOISE**2
        noise = math.sqrt(squares / degrees)
    if noise > MAX_NOISE:
        raise Refused(_describe_misfit(points, residuals, noise))
    rows = (covariance + covariance.T) / 2
    return Law(
        corpus=corpus,
        vocabulary=vocabulary,
        is_own=is_own,
        constants=Constants.from_vector(vector),
        covariance=tuple(tuple(map(float, row)) for row in rows),
        noise=noise,
        degrees=degrees,
        transfer=transfer,
        points=tuple(points),
        residuals=tuple(map(float, residuals)),
    )


def _describe_misfit(points: Sequence[Point], residuals: np.ndarray, noise: float) -> str:
    listed = "; ".join(
        f"{count_in_words(point.parameters)} parameters, {count_in_words(point.tokens)} tokens: "
        f"{point.loss:.3f} ({residual:+.1%})"
        for point, residual in zip(points, residuals, strict=True)
    )
    return (
        f"the points do not fit a law: they scatter by {noise:.1%} about the best one, more than "
        f"{MAX_NOISE:.0%}, so nothing is predicted from them; loss and residual of each: {listed}"
        "; look for a run that ended early, had a bad rate or was only beginning to learn"
    )


def _check_points(points: Sequence[Point], has_known_rows: bool) -> None:
    if not MIN_POINTS <= len(points) <= MAX_POINTS:
        raise Refused(f"there are {len(points)} points; a law needs {MIN_POINTS} to {MAX_POINTS}")
    for point in points:
        if not all(0 < value < math.inf for value in point):
            raise Refused(f"{point} has a value that is not a number above 0")
    for name in ("parameters", "tokens"):
        if len({getattr(point, name) for point in points}) < 2 and not has_known_rows:
            raise Refused(f"all points have the same {name}; a law needs two values or more")


def _find_mode(
    points: Sequence[Point], prior: _Prior, noise: float, starts: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the likeliest constants and the Jacobian there, whose square is the curvature."""
    # Here: only a fit waits for it.
    from scipy.optimize import least_squares

    log_losses, count = np.log([point.loss for point in points]), len(points)
    weights, means, deviations = prior

    def residuals(vector: np.ndarray) -> np.ndarray:
        fitted, _ = compute_log_losses(vector, points)
        off = (weights @ vector - means) / deviations
        return np.concatenate([(fitted - log_losses) / noise, off])

    def jacobian(vector: np.ndarray) -> np.ndarray:
        _, by_constants = compute_log_losses(vector, points)
        return np.concatenate([by_constants / noise, weights / deviations[:, None]])

    def weigh(squares: np.ndarray) -> np.ndarray:
        """Return the Huber loss of points (plain squares for the prior) and its two derivatives."""
        far = squares > _HUBER**2
        far[count:] = False
        root = np.sqrt(np.where(far, squares, 1.0))
        return np.stack(
            [
                np.where(far, 2 * _HUBER * root - _HUBER**2, squares),
                np.where(far, _HUBER / root, 1.0),
                np.where(far, -_HUBER / (2 * root**3), 0.0),
            ]
        )

    results = [
        least_squares(
            *(residuals, np.clip(start, *_BOUNDS), jacobian),
            bounds=(_BOUNDS[0] - 1e-6, _BOUNDS[1] + 1e-6),
            loss=weigh,
            x_scale=np.array([0.5, 1.0, 0.1, 1.0, 0.1, 1.0]),
        )
        for start in starts
    ]
    best = min(results, key=lambda result: result.cost)
    return best.x, best.jac


def _make_start(points: Sequence[Point], of_rest: float, of_size: float) -> np.ndarray:
    """Split the mean loss of the points into the law's three terms."""
    log_size, log_tokens, _, log_loss = _average_logs(points)
    size_exponent, data_exponent = _SIZE_EXPONENT[0], _DATA_EXPONENT[0]
    return np.array(
        [
            math.log(of_rest) + log_loss,
            math.log(of_size) + log_loss + size_exponent * log_size,
            size_exponent,
            math.log(1 - of_rest - of_size) + log_loss + data_exponent * log_tokens,
            data_exponent,
            _LOG_REPEATS[0],
        ]
    )


# Perplexities of held-out masked words after 1,000,000 steps of 256 rows, of the sizes whose heads
# are 64 wide: layers, width, perplexity. Source: Devlin et al. 2019, table 6.
TABLE_6 = ((3, 768, 5.84), (6, 768, 4.68), (12, 768, 3.99), (12, 1024, 3.54), (24, 1024, 3.23))
# 90% of the steps have rows of 128, the others rows of 512 (appendix A.2). BookCorpus and Wikipedia
# have 3.3 billion words (section 3.1), taken as 1.25 tokens each.
TABLE_6_TOKENS = 256 * 1e6 * (0.9 * 128 + 0.1 * 512)
TABLE_6_UNIQUE_TOKENS = 1.25 * 3.3e9
# All sizes read the same tokens, so the points do not show the gain from more tokens. At equal
# operations, causal models are best at 20 tokens per parameter (Hoffmann et al.), masked models at
# 10 to 100 times as many (Dervishi et al. 2025, "Training compute-optimal transformer encoder
# models"). There a A / N^a = b B / D^b; taken at the geometric mean, with Base's N.
_BEST_TOKENS_PER_PARAMETER, _LOG_RETURNS_DEVIATION = 20 * math.sqrt(10 * 100), 0.7
# Deviation of log loss between corpora and vocabularies. Unigram losses of our stores, with
# vocabularies of 4,000 to 30,000 tokens, are 6.2 to 7.1 nats (docs/results/training.md).
_TRANSFER = 0.1


@functools.cache
def fit_english() -> Law:
    """Return the law for runs without a ladder, fitted to the table of sizes in BERT's paper."""
    points = [
        Point(
            parameters=12 * layers * width**2,
            tokens=TABLE_6_TOKENS,
            unique_tokens=TABLE_6_UNIQUE_TOKENS,
            loss=math.log(perplexity),
        )
        for layers, width, perplexity in TABLE_6
    ]
    log_size = math.log(12 * 12 * 768**2)  # Base's layers
    log_tokens = log_size + math.log(_BEST_TOKENS_PER_PARAMETER)
    returns = math.log(_DATA_EXPONENT[0] / _SIZE_EXPONENT[0])
    return fit(
        points,
        corpus="BookCorpus and English Wikipedia, Devlin et al. 2019, table 6",
        vocabulary="WordPiece, 30,522 tokens",
        is_own=False,
        transfer=_TRANSFER,
        known=[((0, 1, -log_size, -1, log_tokens, 0), returns, _LOG_RETURNS_DEVIATION)],
    )


# Held-out masked LM losses of a ladder on English, 8 files of Wikipedia and 18 novels: the width,
# then the losses after each of LADDER_TOKENS. Layers are as many as 64 goes into the width, with
# gated feed-forward parts 2.625 times as wide. Source: docs/results/training.md, 2026-11-25.
LADDER_LOSSES = (
    *((64, (4.067, 3.735, 3.522)), (128, (3.828, 3.493, 3.296))),
    (256, (3.506, 3.190, 2.997)),
)
LADDER_TOKENS, LADDER_UNIQUE_TOKENS = (1e6, 1.5e6, 2e6), 9.3e6


@functools.cache
def fit_ladder() -> Law:
    """Return the law for small runs, fitted to bert_jax's ladder on English."""
    points = [
        Point(
            parameters=width // 64 * width * round((4 + 3 * 2.625) * width),
            tokens=tokens,
            unique_tokens=LADDER_UNIQUE_TOKENS,
            loss=loss,
        )
        for width, losses in LADDER_LOSSES
        for tokens, loss in zip(LADDER_TOKENS, losses, strict=True)
    ]
    corpus, vocabulary = "English Wikipedia and 18 novels", "WordPiece, 1,024 tokens"
    return fit(points, corpus, vocabulary, is_own=False, transfer=_TRANSFER)
