"""The compiled step and evaluation of each phase: made when asked for, or ahead in a thread."""

from concurrent.futures import Future, ThreadPoolExecutor

import jax

from bert_jax import mesh as mesh_lib
from bert_jax import state as state_lib
from bert_jax import step as step_lib
from bert_jax.preparation import Setup


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
        self._steps: dict[int, jax.stages.Compiled] = {}
        self._evaluations: dict[int, jax.stages.Compiled] = {}

    def begin(self, index: int) -> None:
        """Begin to compile a phase's programs in the background, once, if there is such a phase."""
        is_new = index < len(self._setup.phases) and index not in self._ahead
        if is_new and compiles_ahead(self._setup.mesh):
            self._ahead[index] = self._thread.submit(self._compile, index)

    def is_ready(self, index: int) -> bool:
        """Whether a phase's step was compiled ahead."""
        return index in self._ahead and self._ahead[index].done()

    def step(self, index: int) -> jax.stages.Compiled:
        """The training step: (state, batch) -> (next state, sums), state donated.

        An error of a compile that was begun ahead is raised here.
        """
        self._wait_for(index)
        if index not in self._steps:
            self._compile_step(index)
        return self._steps[index]

    def evaluation(self, index: int) -> jax.stages.Compiled:
        """The evaluation of one held-out batch: (params, batch) -> sums."""
        self._wait_for(index)
        if index not in self._evaluations:
            self._compile_evaluation(index)
        return self._evaluations[index]

    def _wait_for(self, index: int) -> None:
        if index in self._ahead:
            self._ahead[index].result()

    def _compile(self, index: int) -> None:
        with jax.set_mesh(self._setup.mesh):  # a thread does not have that of another one
            self._compile_step(index)
            self._compile_evaluation(index)

    def _compile_step(self, index: int) -> None:
        setup = self._setup
        phase = setup.config.phases[index]
        take_step = step_lib.train_step(
            setup.model, setup.objective, setup.tx, setup.config, phase, setup.where
        )
        batch = step_lib.abstract_batch(setup.config, phase, setup.mesh)
        self._steps[index] = take_step.lower(self._abstract, batch).compile()

    def _compile_evaluation(self, index: int) -> None:
        setup = self._setup
        batch = {
            name: jax.ShapeDtypeStruct(
                array.shape,
                array.dtype,
                sharding=mesh_lib.batch_sharding(setup.mesh, array.ndim),
            )
            for name, array in setup.phases[index].heldout_batches[0].items()
        }
        evaluate = step_lib.eval_step(setup.model, setup.objective)
        self._evaluations[index] = evaluate.lower(self._abstract.params, batch).compile()

    def close(self) -> bool:
        """Begin nothing more; whether a compile is under way, which cannot be stopped."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        return any(not future.done() for future in self._ahead.values())
