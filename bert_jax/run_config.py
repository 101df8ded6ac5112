"""What the loop reads of a run's settings, whatever the run learns: pre-training or a task."""

from typing import Any, ClassVar, Protocol

from bert_jax.config import (
    CheckpointConfig,
    ComputeConfig,
    EvalConfig,
    GuardConfig,
    HostsConfig,
    LogConfig,
    MeshConfig,
    ModelConfig,
    OptimConfig,
    Phase,
)


class RunConfig(Protocol):
    """Config and FinetuneConfig both are one; their other fields say what the batches hold."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Stretches of training, at least one."""

    @property
    def seed(self) -> int:
        """Of the initial weights and of dropout."""

    @property
    def model(self) -> ModelConfig: ...

    @property
    def compute(self) -> ComputeConfig: ...

    @property
    def optim(self) -> OptimConfig: ...

    @property
    def mesh(self) -> MeshConfig: ...

    @property
    def eval(self) -> EvalConfig: ...

    @property
    def checkpoint(self) -> CheckpointConfig: ...

    @property
    def guard(self) -> GuardConfig: ...

    @property
    def hosts(self) -> HostsConfig: ...

    @property
    def log(self) -> LogConfig: ...

    @property
    def log_every_steps(self) -> int: ...
