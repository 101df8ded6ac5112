"""Read the text of a compiled XLA program: computations, instructions, sizes, device groups."""

import dataclasses
import math
import re

import numpy as np

_ITEM_BYTES = {"pred": 1, "bf16": 2} | {
    f"{kind}{8 * size}": size for kind in "suf" for size in (1, 2, 4, 8)
}
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+)\s*\(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """Hold one line of a computation."""

    name: str
    result: str  # its type, with layouts
    opcode: str
    arguments: str  # the text in its parentheses
    rest: str  # the attributes after them

    @property
    def operands(self) -> list[str]:
        """Return the names of the instructions whose results this one takes."""
        return re.findall(r"%([\w.\-]+)", self.arguments)

    def attribute(self, name: str) -> str:
        """Return the value of an attribute such as body=%x or x="..."; empty if there is none."""
        match = re.search(rf'\b{name}=(?:"([^"]*)"|%?([\w.\-]+))', self.rest)
        return (match.group(1) or match.group(2) or "") if match else ""

    @property
    def estimated_cycles(self) -> int | None:
        """Return the cycles that the TPU's compiler expects, or None."""
        match = re.search(r'"estimated_cycles":"(\d+)"', self.rest)
        return int(match.group(1)) if match else None


@dataclasses.dataclass(frozen=True)
class HloProgram:
    """Hold computations by name, in the order of their schedule, and the entry's name."""

    computations: dict[str, list[Instruction]]
    entry: str


_WRAPPED = re.compile(r'\n(?=["}]["}])|\n(?="\w)')  # inside an instruction that quotes JSON


def parse(text: str) -> HloProgram:
    """Read `compiled.as_text()`."""
    computations: dict[str, list[Instruction]] = {}
    name = entry = ""
    for line in _WRAPPED.sub(" ", text).splitlines():
        head = None if line.startswith(" ") else _HEAD.match(line)
        if head:
            name = head.group(2)
            computations[name] = []
            entry = name if head.group(1) else entry
        elif line.rstrip() == "}":
            name = ""
        elif name and (instruction := _instruction(line)):
            computations[name].append(instruction)
    return HloProgram(computations, entry)


def _instruction(line: str) -> Instruction | None:
    matched = _INSTRUCTION.match(line)
    if not matched:
        return None
    name, right = matched.groups()
    end = _find_closing(right, 0) + 1 if right.startswith("(") else right.find(" ")
    result, call = right[:end], right[end:].lstrip()
    opcode, parenthesis, _ = call.partition("(")
    if not parenthesis:
        return None
    close = _find_closing(call, len(opcode))
    return Instruction(name, result, opcode, call[len(opcode) + 1 : close], call[close + 1 :])


def _find_closing(text: str, start: int) -> int:
    """Return the position where the parenthesis that opens at start closes."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return len(text) - 1


def split_tuple(result: str) -> list[str]:
    """Return the outermost members of a tuple's type; of another type, itself."""
    if not result.startswith("("):
        return [result]
    members, depth, start = [], 0, 1
    for place, letter in enumerate(result):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(letter, 0)
        if (letter == "," and depth == 1) or depth == 0:
            members.append(result[start:place].strip())
            start = place + 1
    return members


def count_bytes(result: str) -> int:
    """Count the bytes of all arrays in a type; XLA tokens have none."""
    return sum(
        _ITEM_BYTES.get(kind, 0) * math.prod(int(size) for size in dims.split(",") if size)
        for kind, dims in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", result)
    )


def read_trip_count(program: HloProgram, loop: Instruction) -> int | None:
    """Return how often a loop runs, by its attribute or its condition; None if neither tells.

    The bound counts from 0 by 1, as the loops that jax.lax.scan and fori_loop make.
    """
    stated = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.rest)
    if stated:
        return int(stated.group(1))
    condition = program.computations[loop.attribute("condition")]
    bounds = {line.name: line.arguments for line in condition if line.opcode == "constant"}
    compared = [line for line in condition if line.opcode == "compare"]
    if len(compared) != 1 or "direction=LT" not in compared[0].rest:
        return None
    bound = bounds.get(compared[0].operands[-1], "")
    return int(bound) if bound.isdigit() else None


def list_branches(conditional: Instruction) -> list[str]:
    """Return the computations that a conditional chooses from."""
    listed = re.search(r"branch_computations=\{([^}]*)\}", conditional.rest)
    if listed:
        return [name.strip().lstrip("%") for name in listed.group(1).split(",")]
    return [conditional.attribute("true_computation"), conditional.attribute("false_computation")]


def read_first_group(rest: str, devices: int) -> list[int]:
    """Return the numbers of the devices in the first group of a collective.

    Groups are written in three ways: {{0,1},{2,3}}, [4,2]<=[2,4]T(1,0), or as axes of a mesh,
    mesh['x'=4,'y'=2] {'y'}, where an axis may be split: 'x':(2)2 has size 2 after size 2.
    """
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", rest):
        return [int(number) for number in listed.group(1).split(",")]
    if iota := re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest):
        size, dims, axes = int(iota[2]), _numbers(iota[3]), _numbers(iota[4] or "")
        grid = np.arange(math.prod(dims)).reshape(dims).transpose(axes or range(len(dims)))
        return [int(device) for device in grid.ravel()[:size]]
    if of_mesh := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", rest):
        return _along_axes(of_mesh.group(1), of_mesh.group(2))
    return list(range(devices))


def read_pairs(rest: str) -> list[tuple[int, int]]:
    """Return (sender, receiver) pairs of a collective-permute."""
    listed = re.search(r"source_target_pairs=\{([\d,{}]*)\}\}", rest)
    match = re.findall(r"(\d+),(\d+)", listed.group(1)) if listed else []
    return [(int(sender), int(receiver)) for sender, receiver in match]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def _along_axes(mesh: str, axes: str) -> list[int]:
    names = re.findall(r"'([^']+)'=(\d+)", mesh)
    dims = [int(size) for _, size in names]
    strides = {name: math.prod(dims[index + 1 :]) for index, (name, _) in enumerate(names)}
    sizes = {name: int(size) for name, size in names}
    group = [0]
    for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", axes):
        length = int(size or sizes[name])
        stride = strides[name] * (sizes[name] // (int(before or 1) * length))
        group = [start + step * stride for start in group for step in range(length)]
    return group
