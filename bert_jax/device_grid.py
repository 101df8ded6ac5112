"""Where each device stands in a mesh: inside one slice, or in several that a slower network joins.

The chips of a slice are wired to each other; slices meet over the data-centre network. The data
axis is the outermost and the only one that spans slices: it carries one sum of gradients a step,
while the fsdp and model axes carry weights and activations all the time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.experimental import mesh_utils


def of_slices(devices: Sequence[Any], num_slices: int) -> list[list[Any]]:
    """The devices of each slice, the slices in their order.

    Raises:
      ValueError: the devices do not lie in so many slices, all alike.
    """
    if num_slices == 1 and devices[0].platform != "tpu":
        return [list(devices)]  # others number hosts, not slices
    missing = getattr(devices[0], "slice_index", None) is None
    if missing and num_slices > 1:
        raise ValueError(
            f"config.mesh.num_slices is {num_slices}, but {devices[0].platform} devices do not "
            "tell their slice, as those of TPU slices do; set it to 1"
        )
    members: dict[int, list[Any]] = {}
    for device in devices:
        members.setdefault(0 if missing else device.slice_index, []).append(device)
    if len(members) != num_slices:
        raise ValueError(
            f"config.mesh.num_slices is {num_slices}, but the {len(devices)} devices lie in "
            f"{len(members)}; set it to {len(members)}"
        )
    sizes = [len(members[number]) for number in sorted(members)]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"config.mesh.num_slices is {num_slices}, but these hold "
            f"{', '.join(map(str, sizes))} devices; join slices of one size"
        )
    return [members[number] for number in sorted(members)]


def arranged(sizes: tuple[int, int, int], slices: Sequence[Sequence[Any]]) -> np.ndarray:
    """The devices on the axes data, fsdp and model, those of a slice neighbours along data.

    Shapes: object[data, fsdp, model]. Inside a slice they follow the wiring of its chips. Where
    data is the only axis they are the chips row by row, so that devices which lie next to each
    other, and those which lie a row apart, share no link with the others that exchange meanwhile.
    """
    data, fsdp, model = sizes
    inside = (data // len(slices), fsdp, model)
    if fsdp == model == 1 and slices[0][0].platform == "tpu":
        rows = [sorted(one, key=lambda of: (*of.coords, of.core_on_chip)) for one in slices]
        return np.array([one for row in rows for one in row]).reshape(sizes)
    grids = [
        mesh_utils.create_device_mesh(inside, one, allow_split_physical_axes=True)
        for one in map(list, slices)
    ]
    return np.concatenate(grids)
