"""The compiled steps and evaluations of each phase: made when asked for, or ahead in a thread."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import jax

from bert_jax import mesh as mesh_lib
from bert_jax import state as state_lib
from bert_jax import step as step_lib
from bert_jax.placed_batches import PlacedBatch
from bert_jax.preparation import Setup
from bert_jax.run_feed import BatchShape, HostBatch

_Key = tuple[int, tuple[int, ...]]  # number of a phase, shape of a batch's input_ids
Tell = Callable[[str], None]


def _unheard(words: str) -> None:
    """Not every caller has a screen."""


def compiles_ahead(mesh: jax.sharding.Mesh) -> bool:
    """Whether a phase may be compiled beside the steps of another.

    Not on GPUs: there the compiler times its kernels on the card, and a training step beside them
    would spoil the choice. Not on the CPUs of several processes: compiling there takes the threads
    in which they exchange gradients, and each could wait for the other for ever.
    """
    platform = mesh.devices.flat[0].platform
    return bool(platform == "tpu" or (platform == "cpu" and jax.process_count() == 1))


class Programs:
    """What runs on the devices, by the number of the phase."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._abstract = state_lib.abstract(setup.model, setup.tx, setup.where)
        self._thread = ThreadPoolExecutor(1, "compiling")
        self._ahead: dict[int, Future[None]] = {}
        self._steps: dict[_Key, jax.stages.Compiled] = {}
        self._evaluations: dict[_Key, jax.stages.Compiled] = {}

    def begin(self, index: int) -> None:
        """Begin to compile a phase's programs in the background, once, if there is such a phase."""
        is_new = index < len(self._setup.phases) and index not in self._ahead
        if is_new and compiles_ahead(self._setup.mesh):
            self._ahead[index] = self._thread.submit(self._compile, index)

    def is_ready(self, index: int) -> bool:
        """Whether a phase's step was compiled ahead."""
        return index in self._ahead and self._ahead[index].done()

    def compile_steps(self, index: int, first_step: int, tell: Tell = _unheard) -> None:
        """Have a phase's training steps from one of its steps on, one for each shape of a batch.

        Where there are several, tell gets words for each. An error of a compile that was begun
        ahead is raised here.
        """
        self._wait_for(index)
        shapes = self._setup.feed.batch_shapes(index, first_step)
        for done, shape in enumerate(shapes):
            if len(shapes) > 1:
                tell(f" for {shape['input_ids'][0][-1]} tokens ({done + 1} of {len(shapes)})")
            if (index, shape["input_ids"][0]) not in self._steps:
                self._compile_step(index, shape)

    def step(self, index: int, batch: PlacedBatch) -> jax.stages.Compiled:
        """The training step for such a batch: (state, batch) -> (next state, sums)."""
        return self._steps[index, batch["input_ids"].shape]

    def compile_evaluations(self, index: int) -> None:
        """Have the evaluations of a phase, one for each shape of a held-out batch."""
        self._wait_for(index)
        for batch in self._setup.phases[index].heldout_batches:
            self._compile_evaluation(index, batch)

    def evaluation(self, index: int, batch: PlacedBatch) -> jax.stages.Compiled:
        """The evaluation of such a batch: (params, batch) -> what step.eval_step gives."""
        return self._evaluations[index, batch["input_ids"].shape]

    def _wait_for(self, index: int) -> None:
        if index in self._ahead:
            self._ahead[index].result()

    def _compile(self, index: int) -> None:
        with jax.set_mesh(self._setup.mesh):  # a thread does not have that of another one
            for shape in self._setup.feed.batch_shapes(index, first_step=0):
                self._compile_step(index, shape)
            for batch in self._setup.phases[index].heldout_batches:
                self._compile_evaluation(index, batch)

    def _compile_step(self, index: int, shape: BatchShape) -> None:
        setup, key = self._setup, (index, shape["input_ids"][0])
        take_step = step_lib.train_step(
            setup.model,
            setup.objective,
            setup.tx,
            setup.config,
            setup.config.phases[index],
            setup.where,
        )
        batch = mesh_lib.abstract_batch(shape, setup.mesh)
        self._steps[key] = take_step.lower(self._abstract, batch).compile()

    def _compile_evaluation(self, index: int, batch: HostBatch) -> None:
        setup, key = self._setup, (index, batch["input_ids"].shape)
        if key in self._evaluations:
            return
        shape = {name: (array.shape, array.dtype.type) for name, array in batch.items()}
        evaluate = step_lib.eval_step(setup.model, setup.objective)
        abstract = mesh_lib.abstract_batch(shape, setup.mesh)
        self._evaluations[key] = evaluate.lower(self._abstract.params, abstract).compile()

    def close(self) -> bool:
        """Begin nothing more; whether a compile is under way, which cannot be stopped."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        return any(not future.done() for future in self._ahead.values())
