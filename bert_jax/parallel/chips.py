"""List the peak rates of chips: matrix units, memory and links, from data sheets."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chip:
    """Hold the peak rates of one chip, which may have several JAX devices.

    The interconnect (ICI, NVLink) joins the chips of a slice, the network joins slices.
    """

    name: str
    bf16_flops_per_sec: float
    hbm_bytes: int
    hbm_bytes_per_sec: float
    link_bytes_per_sec: float  # rate of one interconnect link in one direction
    links: int  # interconnect links of a chip
    network_bytes_per_sec: float  # the chip's share of its host's network; 0: not published
    clock_hz: float  # clock of the matrix units at which the peak is stated
    devices_per_chip: int = 1

    @property
    def device_bf16_flops_per_sec(self) -> float:
        """Return the peak of one JAX device of the chip."""
        return self.bf16_flops_per_sec / self.devices_per_chip


_GIB = 2**30

# TPUs. Peak, memory and interconnect: the page of each version under
# https://cloud.google.com/tpu/docs/system-architecture-tpu-vm; it states the interconnect for all
# links of a chip, in both directions in newer pages (v5e: 400 GB/s over 4 links). Links of v2 and
# v3, and their clocks: Jouppi et al. 2020, "A domain-specific supercomputer for training deep
# neural networks", table 3; of v4: Jouppi et al. 2023, "TPU v4", table 4. Network: of v5e, a pod's
# bandwidth over its 256 chips; of v6e and tpu7x, the page of tpu7x; of v5p,
# https://jax-ml.github.io/scaling-book/tpus. Clocks from v5e on follow from the peaks: a core does
# 4 x 128 x 128 multiplications per cycle, on v6e and tpu7x 4 x 256 x 256. The compiler's
# estimates of large matmuls come near these rates.
TPUS = (
    Chip("v2", 45e12, 16 * _GIB, 700e9, 62e9, 4, 0, 0.70e9, devices_per_chip=2),
    Chip("v3", 123e12, 32 * _GIB, 900e9, 82e9, 4, 0, 0.94e9, devices_per_chip=2),
    Chip("v4", 275e12, 32 * _GIB, 1228e9, 50e9, 6, 0, 1.05e9),
    Chip("v5e", 197e12, 16 * _GIB, 819e9, 50e9, 4, 3.125e9, 1.50e9),
    Chip("v5p", 459e12, 95 * _GIB, 2765e9, 100e9, 6, 6.25e9, 1.75e9),
    Chip("v6e", 918e12, 32 * _GIB, 1638e9, 100e9, 4, 12.5e9, 1.75e9),
    Chip("tpu7x", 2307e12, 192 * _GIB, 7380e9, 100e9, 6, 12.5e9, 2.20e9, devices_per_chip=2),
)

# NVIDIA's data sheets. Peaks are for dense matrices; the one link stands for all of NVLink in one
# direction (PCIe where the card has no NVLink); the clock is the one at which the peak is reached.
GPUS = (
    Chip("H200 NVL", 835.5e12, 141 * 10**9, 4.8e12, 450e9, 1, 0, 1.55e9),
    Chip("H200", 989.4e12, 141 * 10**9, 4.8e12, 450e9, 1, 0, 1.83e9),
    Chip("H100 NVL", 835.5e12, 94 * 10**9, 3.9e12, 300e9, 1, 0, 1.55e9),
    Chip("H100 PCIe", 756e12, 80 * 10**9, 2.0e12, 64e9, 1, 0, 1.62e9),
    Chip("H100", 989.4e12, 80 * 10**9, 3.35e12, 450e9, 1, 0, 1.83e9),
    Chip("A100 80GB", 312e12, 80 * 10**9, 2.039e12, 300e9, 1, 0, 1.41e9),
    Chip("A100 40GB", 312e12, 40 * 10**9, 1.555e12, 300e9, 1, 0, 1.41e9),
)

_BY_VERSION = {chip.name: chip for chip in TPUS}
# JAX's name of a TPU (`device.device_kind`) -> its version.
_TPU_KINDS = {
    "TPU v2": "v2",
    "TPU v3": "v3",
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "tpu7x",
}


def find_chip(device: str) -> Chip | None:
    """Find a chip by JAX's device kind or by a TPU's version such as "v5e"; None if unknown.

    A GPU is found if `device` has all words of its name, as in "NVIDIA A100-SXM4-40GB"; a part of
    a GPU (MIG) is not.
    """
    version = _TPU_KINDS.get(device, device)
    if version in _BY_VERSION:
        return _BY_VERSION[version]
    words = set(device.upper().replace("-", " ").split())
    chips = () if "MIG" in words else GPUS
    return next((chip for chip in chips if set(chip.name.upper().split()) <= words), None)
