"""List the candidate shapes for a budget, and the speed of a slice for each of them."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from bert_jax.config import Config, resolve, set_fields
from bert_jax.logging.console import Screen
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.planning import aot_compile, estimate, slices
from bert_jax.planning.aot_compile import Compiled, TooLarge
from bert_jax.planning.estimate import Estimate
from bert_jax.planning.law import count_in_words, count_layer_parameters
from bert_jax.planning.slices import Slice
from data_pipeline.io import Refused

# Assumed share of the chips' peak before anything is compiled: proportional to the width, up to a
# limit. With 16 rows of 128 per chip, the compiler expects 24% at width 512 and 38% at width 768,
# with 64 rows 59%.
_FULL_WIDTH, _MAX_SHARE = 2048, 0.6
_COMPILES_AT_ONCE = 2  # each takes a core

# Compiles a phase of each config, several at once.
CompileAll = Callable[[Sequence[tuple[Config, int]]], list[Compiled | TooLarge]]


@dataclasses.dataclass(frozen=True)
class EncoderShape:
    """Hold the layers and width of an encoder."""

    layers: int
    width: int

    @property
    def name(self) -> str:
        """Return its usual name, such as 12 x 768."""
        return f"{self.layers} x {self.width}"


# Turc et al. 2019 (arXiv:1908.08962): Tiny, Mini, Small, Medium; Devlin et al. 2019: Base, Large.
FAMILY = (
    *(EncoderShape(2, 128), EncoderShape(4, 256), EncoderShape(4, 512), EncoderShape(8, 512)),
    *(EncoderShape(12, 768), EncoderShape(24, 1024)),
)

# Settings of config.model that reshape changes, in the order of its sizes.
SIZE_FIELDS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")


def reshape(config: Config, shape: EncoderShape) -> Config:
    """Give a config's model this shape; the head width and the feed-forward ratio stay.

    If the head width does not divide the new width, heads get the least even width of 64 or more
    that does.
    """
    model = config.model
    heads, rest = divmod(shape.width, model.hidden_size // model.num_attention_heads)
    if rest:
        heads = next((n for n in range(shape.width // 64, 1, -1) if shape.width % (2 * n) == 0), 1)
    mlp_ratio = model.intermediate_size / model.hidden_size
    sizes = (shape.layers, shape.width, heads, round(mlp_ratio * shape.width))
    keys = (f"model.{name}" for name in SIZE_FIELDS)
    return set_fields(config, dict(zip(keys, sizes, strict=True)))


@dataclasses.dataclass(frozen=True)
class PhaseSpeed:
    """Hold the seconds of a step in a phase, and the origin of this number.

    origin is "compiled", "operations" (at the share of peak of a compiled phase) or "assumed".
    """

    step_secs: float
    peak_share: float
    origin: str


@dataclasses.dataclass(frozen=True)
class RunCandidate:
    """Hold a shape with its speed on a slice."""

    shape: EncoderShape
    config: Config
    layer_parameters: int
    speeds: tuple[PhaseSpeed, ...]  # one per phase
    is_compiled: bool = False
    has_unpriced_kernels: bool = False  # the compiler's estimate leaves their time out

    def count_secs(self, steps: Sequence[float]) -> float:
        """Return the seconds of a run with these steps in each phase."""
        pairs = zip(steps, self.speeds, strict=True)
        return sum(count * speed.step_secs for count, speed in pairs)

    def speed_up(self, factor: float) -> "RunCandidate":
        """Return the candidate with its speed times `factor`."""
        speeds = (dataclasses.replace(s, step_secs=s.step_secs / factor) for s in self.speeds)
        return dataclasses.replace(self, speeds=tuple(speeds))


def make_compiler(tpu_slice: Slice, screen: Screen) -> CompileAll:
    """Make a function that compiles phases for a slice, _COMPILES_AT_ONCE at a time."""
    devices = slices.open_devices(tpu_slice)

    def compile_phase(part: tuple[Config, int]) -> Compiled | TooLarge:
        return aot_compile.compile_step(*part, tpu_slice, devices, cache=aot_compile.STEP_CACHE)

    def compile_all(parts: Sequence[tuple[Config, int]]) -> list[Compiled | TooLarge]:
        names = [
            f"{config.model.num_hidden_layers} x {config.model.hidden_size} with rows of "
            f"{config.phases[index].seq_len}"
            for config, index in parts
        ]
        doing = f"compiling {' and '.join(names)} for {tpu_slice.name}"
        screen.print_without_line(doing)
        with screen.spinning(doing), ThreadPoolExecutor(_COMPILES_AT_ONCE) as pool:
            return list(pool.map(compile_phase, parts))

    return compile_all


def list_candidates(
    config: Config, tpu_slice: Slice, most_parameters: float, notes: list[str]
) -> list[RunCandidate]:
    """List the family's shapes of at most most_parameters in layers, with assumed speeds.

    The smallest shape is always included. The reasons for leaving out shapes are added to `notes`.

    Raises:
      Refused: no shape divides over the slice.
    """
    candidates: list[RunCandidate] = []
    for shape in FAMILY:
        try:
            reshaped = resolve(reshape(config, shape))
            mesh_lib.check_divides(reshaped, tpu_slice.devices)
        except Refused as error:
            notes.append(f"{shape.name} is left out: {error}")
            continue
        layers = count_layer_parameters(reshaped.model)
        if layers > most_parameters and candidates:
            notes.append(
                f"{shape.name} is left out: {count_in_words(layers)} layer parameters, and for so "
                f"little text the law covers at most {count_in_words(most_parameters)}"
            )
            continue
        speeds = _assume_speeds(reshaped, tpu_slice, _assume_share(shape))
        candidates.append(RunCandidate(shape, reshaped, layers, speeds))
    if not candidates:
        raise Refused(f"no shape can be trained on {tpu_slice.name}: {'; '.join(notes)}")
    return candidates


def compile_phases(
    candidate: RunCandidate, tpu_slice: Slice, compile_all: CompileAll
) -> RunCandidate | TooLarge:
    """Compile the first phase of a candidate, and the longest of its other phases.

    Speeds of other phases follow from operations, at the peak share of the nearest compiled length.
    """
    config = candidate.config
    times = [
        (phase.steps * speed.step_secs, index)
        for index, (phase, speed) in enumerate(zip(config.phases, candidate.speeds, strict=True))
    ]
    indices = [0] + [index for _, index in sorted(times[1:])[-1:]]
    results = compile_all([(config, index) for index in indices])
    estimates = {}
    for index, result in zip(indices, results, strict=True):
        if isinstance(result, TooLarge):
            return result
        estimates[index] = estimate.estimate_step(config, index, tpu_slice, result)
    return dataclasses.replace(
        candidate,
        is_compiled=True,
        speeds=_take_estimates(candidate, tpu_slice, estimates),
        has_unpriced_kernels=any(each.unpriced_kernels for each in estimates.values()),
    )


def _take_estimates(
    candidate: RunCandidate, tpu_slice: Slice, estimates: Mapping[int, Estimate]
) -> tuple[PhaseSpeed, ...]:
    """Return the speeds of all phases from the estimates of the compiled ones."""
    lengths = [phase.seq_len for phase in candidate.config.phases]
    speeds = []
    for index, length in enumerate(lengths):
        if index in estimates:
            speed = PhaseSpeed(estimates[index].step_secs, estimates[index].peak_share, "compiled")
        else:
            near = min(estimates, key=lambda other: abs(math.log(lengths[other] / length)))
            share = estimates[near].peak_share
            speed = _assume_speeds(candidate.config, tpu_slice, share, "operations")[index]
        speeds.append(speed)
    return tuple(speeds)


def correct_assumed(candidates: Sequence[RunCandidate], tpu_slice: Slice) -> list[RunCandidate]:
    """Scale each assumed share of peak by compiled / assumed of the nearest compiled shape."""
    known = [each for each in candidates if each.speeds[0].origin == "compiled"]
    corrected = []
    for candidate in candidates:
        if known and not candidate.is_compiled:
            size = candidate.layer_parameters
            near = min(known, key=lambda each: abs(math.log(each.layer_parameters / size)))
            factor = near.speeds[0].peak_share / _assume_share(near.shape)
            share = min(_MAX_SHARE, factor * _assume_share(candidate.shape))
            speeds = _assume_speeds(candidate.config, tpu_slice, share)
            candidate = dataclasses.replace(candidate, speeds=speeds)
        corrected.append(candidate)
    return corrected


def _assume_share(shape: EncoderShape) -> float:
    return min(_MAX_SHARE, shape.width / _FULL_WIDTH)


def _assume_speeds(
    config: Config, tpu_slice: Slice, share: float, origin: str = "assumed"
) -> tuple[PhaseSpeed, ...]:
    """Compute the time of a step of each phase from its operations and a share of peak."""
    flops_per_sec = share * tpu_slice.chips * tpu_slice.chip.bf16_flops_per_sec
    return tuple(
        PhaseSpeed(estimate.count_step_flops(config, index) / flops_per_sec, share, origin)
        for index in range(len(config.phases))
    )
