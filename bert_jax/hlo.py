"""The text of a compiled XLA program, read: computations, instructions, sizes, device groups."""

import dataclasses
import itertools
import math
import re

_ITEM_BYTES = {
    "pred": 1,
    "s8": 1,
    "u8": 1,
    "s16": 2,
    "u16": 2,
    "bf16": 2,
    "f16": 2,
    "s32": 4,
    "u32": 4,
    "f32": 4,
    "s64": 8,
    "u64": 8,
    "f64": 8,
}
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+)\s*\(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    result: str  # its type, with layouts
    opcode: str
    arguments: str  # what stands in its parentheses
    rest: str  # attributes: what follows them

    @property
    def operands(self) -> list[str]:
        """Names of the instructions whose results it takes."""
        return re.findall(r"%([\w.\-]+)", self.arguments)

    def attribute(self, name: str) -> str:
        """The name that an attribute such as body=%x gives; empty where there is none."""
        found = re.search(rf"\b{name}=%?([\w.\-]+)", self.rest)
        return found.group(1) if found else ""

    def quoted(self, name: str) -> str:
        """The text that an attribute such as x="..." gives; empty where there is none."""
        found = re.search(rf'\b{name}="([^"]*)"', self.rest)
        return found.group(1) if found else ""

    @property
    def estimated_cycles(self) -> int | None:
        """What the TPU's compiler expects it to take; None where it does not say."""
        found = re.search(r'"estimated_cycles":"(\d+)"', self.rest)
        return int(found.group(1)) if found else None


@dataclasses.dataclass(frozen=True)
class Program:
    """Computations by name, in the order of their schedule; the entry's name."""

    computations: dict[str, list[Instruction]]
    entry: str


def parse(text: str) -> Program:
    """Read `compiled.as_text()`.

    Raises:
      ValueError: there is no entry computation in it.
    """
    found: dict[str, list[Instruction]] = {}
    name = entry = ""
    for line in text.splitlines():
        head = None if line.startswith(" ") else _HEAD.match(line)
        if head:
            name = head.group(2)
            found[name] = []
            entry = name if head.group(1) else entry
        elif line.rstrip() == "}":
            name = ""
        elif name and (instruction := _instruction(line)):
            found[name].append(instruction)
    if not entry:
        raise ValueError("this is not the text of a compiled program: it has no ENTRY")
    return Program(found, entry)


def _instruction(line: str) -> Instruction | None:
    matched = _INSTRUCTION.match(line)
    if not matched:
        return None
    name, right = matched.groups()
    end = _closing(right, 0) + 1 if right.startswith("(") else right.find(" ")
    result, call = right[:end], right[end:].lstrip()
    opcode, parenthesis, _ = call.partition("(")
    if not parenthesis:
        return None
    close = _closing(call, len(opcode))
    return Instruction(name, result, opcode, call[len(opcode) + 1 : close], call[close + 1 :])


def _closing(text: str, start: int) -> int:
    """Where the parenthesis that opens at start closes."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return len(text) - 1


def parts(result: str) -> list[str]:
    """The outermost members of a tuple's type; of another type, itself."""
    if not result.startswith("("):
        return [result]
    members, depth, start = [], 0, 1
    for place, letter in enumerate(result):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(letter, 0)
        if (letter == "," and depth == 1) or depth == 0:
            members.append(result[start:place].strip())
            start = place + 1
    return members


def array_bytes(result: str) -> int:
    """Bytes of all arrays in a type; tokens have none."""
    return sum(
        _ITEM_BYTES.get(kind, 0) * math.prod(int(size) for size in dims.split(",") if size)
        for kind, dims in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", result)
    )


def trip_count(program: Program, loop: Instruction) -> int | None:
    """How often a loop runs: as it states, or as its condition's bound says; None if neither does.

    The bound counts from 0 by 1, as the loops that jax.lax.scan and fori_loop make.
    """
    stated = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.rest)
    if stated:
        return int(stated.group(1))
    condition = program.computations[loop.attribute("condition")]
    bounds = {one.name: one.arguments for one in condition if one.opcode == "constant"}
    compared = [one for one in condition if one.opcode == "compare"]
    if len(compared) != 1 or "direction=LT" not in compared[0].rest:
        return None
    bound = bounds.get(compared[0].operands[-1], "")
    return int(bound) if bound.isdigit() else None


def branches(one: Instruction) -> list[str]:
    """Computations of which a conditional runs one."""
    listed = re.search(r"branch_computations=\{([^}]*)\}", one.rest)
    if listed:
        return [name.strip().lstrip("%") for name in listed.group(1).split(",")]
    return [one.attribute("true_computation"), one.attribute("false_computation")]


def first_group(rest: str, devices: int) -> list[int]:
    """Numbers of the devices that take part in a collective together with the first.

    Groups are written in three ways: {{0,1},{2,3}}, [4,2]<=[2,4]T(1,0), or as axes of a mesh,
    mesh['x'=4,'y'=2] {'y'}, where an axis may be cut: 'x':(2)2 are 2 after the first 2.
    """
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", rest):
        return [int(number) for number in listed.group(1).split(",")]
    if iota := re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest):
        size = int(iota.group(2))
        return _permuted(_numbers(iota.group(3)), _numbers(iota.group(4) or ""))[:size]
    if of_mesh := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", rest):
        return _along_axes(of_mesh.group(1), of_mesh.group(2))
    return list(range(devices))


def pairs(rest: str) -> list[tuple[int, int]]:
    """Who sends to whom in a collective-permute."""
    listed = re.search(r"source_target_pairs=\{([\d,{}]*)\}\}", rest)
    found = re.findall(r"(\d+),(\d+)", listed.group(1)) if listed else []
    return [(int(sender), int(receiver)) for sender, receiver in found]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def _permuted(dims: list[int], order: list[int]) -> list[int]:
    """0, 1, ... laid out as dims, read in the order of transposed axes."""
    order = order or list(range(len(dims)))
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
    places = itertools.product(*(range(dims[axis]) for axis in order))
    return [
        sum(place * strides[axis] for place, axis in zip(at, order, strict=True)) for at in places
    ]


def _along_axes(mesh: str, axes: str) -> list[int]:
    names = re.findall(r"'([^']+)'=(\d+)", mesh)
    dims = [int(size) for _, size in names]
    strides = {name: math.prod(dims[index + 1 :]) for index, (name, _) in enumerate(names)}
    sizes = {name: int(size) for name, size in names}
    group = [0]
    for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", axes):
        length = int(size or sizes[name])
        stride = strides[name] * (sizes[name] // (int(before or 1) * length))
        group = [at + step * stride for at in group for step in range(length)]
    return group
