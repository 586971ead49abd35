"""Graphs to plan: a small tape that writes the backward itself, and networks drawn on it.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from lowtide.ir.call import Read
from lowtide.ir.graph import Effect, Graph, MiniTrace, Recipe, Role, Segment, Value

MIB = 2**20
STATE_B = 5056
FLOPS, TRAFFIC_Bps, LAUNCH_s = 300e12, 3.3e12, 4e-6


@dataclass
class Node:
    """A forward operator that the backward will mirror."""

    reads: tuple[int, ...]
    output: int
    saved: tuple[int, ...]  # what its backward reads besides the gradient
    weight_B: int
    time_s: float


@dataclass
class Tape:
    """Writes a graph: forward operators first, then `backward()`.

    Arguments:
        bundles: how many forward/backward pairs; each is a part of its own.
    """

    name: str = "net"
    scale: int = 1
    values: list[Value] = field(default_factory=list)
    recipes: list[Recipe] = field(default_factory=list)
    program: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    needs_grad: set[int] = field(default_factory=set)

    def segment(self, name: str, part: int = 0) -> int:
        self.segments.append(Segment(name, part))
        return len(self.segments) - 1

    def value(self, size_B: int, role: Role = Role.ACTIVATION, **more: object) -> int:
        index = len(self.values)
        self.values.append(Value(index, f"v{index}", int(size_B), role, **more))  # type: ignore[arg-type]
        return index

    def given(self, size_B: int, role: Role = Role.INPUT, arrives: int = 0, persistent: bool = False) -> int:
        return self.value(size_B, role, arrives=arrives, persistent=persistent)

    def recipe(
        self,
        op: str,
        reads: tuple[int, ...],
        outputs: tuple[int, ...],
        time_s: float,
        workspace_B: int = 0,
        effect: Effect = Effect.PURE,
        state: int | None = None,
        in_program: bool = True,
    ) -> int:
        tensors = outputs[:-1] if effect is Effect.RANDOM and state is not None else outputs
        events = [workspace_B] if workspace_B else []
        host_resident = []
        for v in tensors:
            host_resident.append(len(events) if self.values[v].size_B else None)
            if self.values[v].size_B:
                events.append(self.values[v].size_B)
        if workspace_B:
            events.append(-1)
        index = len(self.recipes)
        reads = tuple(dict.fromkeys(reads))
        self.recipes.append(Recipe(
            index, op, outputs, tuple(Read(v) for v in reads), segment=len(self.segments) - 1, effect=effect,
            time_s=time_s, trace=MiniTrace(tuple(events), tuple(host_resident), measured=True), state=state,
        ))  # fmt: skip
        if in_program:
            self.program.append(index)
        return index

    def op(
        self,
        op: str,
        reads: tuple[int, ...],
        size_B: int,
        time_s: float,
        *,
        saves: str = "in",
        mask_B: int = 0,
        weight_B: int = 0,
        workspace_B: int = 0,
        random: bool = False,
    ) -> int:
        """One forward operator; `saves` lists "in", "out", "mask", in one string."""
        output = self.value(size_B)
        outputs = (output, self.value(mask_B)) if mask_B else (output,)
        weights = (self.given(weight_B, Role.PARAMETER, persistent=True),) if weight_B else ()
        if random:
            state = self.value(STATE_B, Role.GENERATOR)
            self.recipe(op, reads + weights, (*outputs, state), time_s, workspace_B, Effect.RANDOM, state)
            self.recipe(op, reads + weights, outputs, time_s * 1.25, workspace_B, state=state, in_program=False)
        else:
            self.recipe(op, reads + weights, outputs, time_s, workspace_B)
        saved = (reads if "in" in saves else ()) + ((output,) if "out" in saves else ()) + outputs[1:]
        self.nodes.append(Node(reads, output, tuple(dict.fromkeys(saved + weights)), weight_B, time_s))
        if weight_B or self.needs_grad.intersection(reads):
            self.needs_grad.add(output)
        return output

    def leave(self, value: int, segment: int, role: Role, held: bool = True) -> None:
        v = self.values[value]
        self.values[value] = Value(v.id, v.name, v.size_B, role, leaves=segment, held=held, arrives=v.arrives)

    def backward(self, loss: int, part: int = 0) -> None:
        """Ends the forward with `loss` and appends the backward segment."""
        self.leave(loss, len(self.segments) - 1, Role.OUTPUT)
        back = self.segment("backward", part)
        grad = {loss: self.given(self.values[loss].size_B, Role.TANGENT, arrives=back)}
        for node in reversed(self.nodes):
            if node.output not in grad or node.output not in self.needs_grad:
                continue
            wanted = [v for v in dict.fromkeys(node.reads) if v in self.needs_grad]
            outputs = [self.value(self.values[v].size_B) for v in wanted]
            extra = (self.value(node.weight_B, Role.GRADIENT, leaves=back),) if node.weight_B else ()
            self.recipe("bwd", (grad[node.output], *node.saved), (*outputs, *extra), node.time_s * (2 if extra else 1))
            for v, g in zip(wanted, outputs, strict=True):
                if v in grad:
                    total = self.value(self.values[v].size_B)
                    self.recipe("add", (grad[v], g), (total,), traffic_s(3 * self.values[v].size_B))
                    grad[v] = total
                else:
                    grad[v] = g
        self.nodes.clear()

    def graph(self) -> Graph:
        return Graph(tuple(self.values), tuple(self.recipes), tuple(self.program), tuple(self.segments), name=self.name)


def traffic_s(size_B: float) -> float:
    return LAUNCH_s + size_B / TRAFFIC_Bps


def matmul_s(flops: float, size_B: float) -> float:
    return LAUNCH_s + max(flops / FLOPS, size_B / TRAFFIC_Bps)


def gpt(blocks: int = 12, batch: int = 8, tokens: int = 1024, width: int = 768, dropout: bool = True) -> Graph:
    """A GPT-like network, about 25 recipes per block, bfloat16, flash-like attention."""
    tape = Tape(f"gpt{blocks}")
    tape.segment("forward")
    act_B = batch * tokens * width * 2
    rows = batch * tokens
    ids = tape.given(rows * 8)
    x = tape.op("embed", (ids,), act_B, traffic_s(2 * act_B), weight_B=50257 * width * 2)

    def linear(x: int, out: int, inner: int) -> int:
        time_s = matmul_s(2 * rows * out * inner, act_B)
        return tape.op("linear", (x,), rows * out * 2, time_s, weight_B=out * inner * 2)

    def drop(x: int) -> int:
        size_B = tape.values[x].size_B
        if not dropout:
            return x
        return tape.op("dropout", (x,), size_B, traffic_s(2.5 * size_B), saves="mask", mask_B=size_B // 2, random=True)

    for _ in range(blocks):
        h = tape.op("layer_norm", (x,), act_B, traffic_s(2 * act_B), mask_B=rows * 8, weight_B=width * 4)
        qkv = linear(h, 3 * width, width)
        time_s = matmul_s(4 * batch * tokens**2 * width, 4 * act_B)
        a = tape.op("attention", (qkv,), act_B, time_s, saves="in out", mask_B=rows * 48)
        x = tape.op("add", (x, drop(linear(a, width, width))), act_B, traffic_s(3 * act_B), saves="")
        h = tape.op("layer_norm", (x,), act_B, traffic_s(2 * act_B), mask_B=rows * 8, weight_B=width * 4)
        g = tape.op("gelu", (linear(h, 4 * width, width),), 4 * act_B, traffic_s(8 * act_B))
        x = tape.op("add", (x, drop(linear(g, width, 4 * width))), act_B, traffic_s(3 * act_B), saves="")
    h = tape.op("layer_norm", (x,), act_B, traffic_s(2 * act_B), mask_B=rows * 8, weight_B=width * 4)
    logits = linear(h, 2048, width)
    tape.backward(tape.op("loss", (logits,), 4, traffic_s(tape.values[logits].size_B)))
    return tape.graph()


def resnet(blocks: tuple[int, ...] = (3, 4, 6, 3), batch: int = 64, width: int = 64, image: int = 56) -> Graph:
    """A bottleneck ResNet: convolutions, batch norms that save statistics and update a buffer, rectifiers."""
    tape = Tape(f"resnet{sum(blocks) * 3 + 2}")
    tape.segment("forward")

    def conv(x: int, channels: int, inner: int, side: int, kernel: int) -> int:
        size_B = batch * channels * side * side * 4
        flops = 2 * batch * channels * inner * side * side * kernel * kernel
        weight_B = channels * inner * kernel * kernel * 4
        y = tape.op("conv", (x,), size_B, matmul_s(flops * 2, 2 * size_B), weight_B=weight_B, workspace_B=size_B // 8)
        z = tape.op("batch_norm", (y,), size_B, traffic_s(3 * size_B), mask_B=channels * 8, weight_B=channels * 8)
        tape.leave(tape.value(channels * 8, Role.UPDATE), 0, Role.UPDATE, held=False)
        tape.recipe("moved_mean", (y,), (len(tape.values) - 1,), traffic_s(channels * 8))
        return z

    def relu(x: int) -> int:
        size_B = tape.values[x].size_B
        return tape.op("relu", (x,), size_B, traffic_s(2 * size_B), saves="out")

    x = relu(conv(tape.given(batch * 3 * (4 * image) ** 2 * 4), width, 3, 2 * image, 7))
    inner = width
    for stage, count in enumerate(blocks):
        side, thin = image >> stage, width << stage
        for block in range(count):
            y = relu(conv(x, thin, inner, side, 1))
            y = conv(relu(conv(y, thin, thin, side, 3)), 4 * thin, thin, side, 1)
            if block == 0:
                x = conv(x, 4 * thin, inner, side, 1)
            inner = 4 * thin
            x = relu(tape.op("add", (x, y), tape.values[y].size_B, traffic_s(3 * tape.values[y].size_B), saves=""))
    x = tape.op("pool", (x,), batch * inner * 4, traffic_s(tape.values[x].size_B), saves="")
    tape.backward(tape.op("loss", (x,), 4, LAUNCH_s))
    return tape.graph()


def unet(depth: int = 4, batch: int = 8, width: int = 64, side: int = 256) -> Graph:
    """A U-Net: skips that live from the encoder to the decoder."""
    tape = Tape("unet")
    tape.segment("forward")

    def conv(x: tuple[int, ...], channels: int, inner: int, side: int) -> int:
        size_B = batch * channels * side * side * 4
        flops = 2 * batch * channels * inner * side * side * 9
        y = tape.op("conv", x, size_B, matmul_s(2 * flops, 2 * size_B), weight_B=channels * inner * 36)
        return tape.op("relu", (y,), size_B, traffic_s(2 * size_B), saves="out")

    x, skips, inner = tape.given(batch * 3 * side * side * 4), [], 3
    for level in range(depth):
        channels, here = width << level, side >> level
        x = conv((conv((x,), channels, inner, here),), channels, channels, here)
        skips.append(x)
        size_B = tape.values[x].size_B
        x = tape.op("pool", (x,), size_B // 4, traffic_s(size_B), mask_B=size_B // 4)
        inner = channels
    x = conv((conv((x,), 2 * inner, inner, side >> depth),), 2 * inner, 2 * inner, side >> depth)
    for level in reversed(range(depth)):
        channels, here = width << level, side >> level
        size_B = batch * channels * here * here * 4
        up = tape.op("up", (x,), size_B, traffic_s(2 * size_B), weight_B=channels**2 * 32)
        x = conv((conv((up, skips[level]), channels, 2 * channels, here),), channels, channels, here)
    tape.backward(tape.op("loss", (x,), 4, traffic_s(tape.values[x].size_B)))
    return tape.graph()


def chain(length: int = 6, size_B: int = MIB, parts: int = 1) -> Graph:
    """A plain chain with unit times; with two parts, a bundle of two captured graphs."""
    tape = Tape(f"chain{length}")
    for part in range(parts):
        tape.segment("forward", part)
        first = len(tape.segments) - 1
        x = tape.given(size_B, arrives=first)
        for k in range(length):
            x = tape.op("f", (x,), size_B * (1 + k % 2), 1e-3 * (1 + k % 3), weight_B=64)
        tape.backward(tape.op("loss", (x,), 4, 1e-3), part)
    return tape.graph()


def branches(width: int = 4, depth: int = 2, size_B: int = MIB) -> Graph:
    """Equal branches, written a layer of all of them at a time, each ending in a small value; no backward."""
    tape = Tape(f"branches{width}")
    tape.segment("forward")
    heads = [tape.given(64)] * width
    for _ in range(depth):
        heads = [_branch_op(tape, head, size_B) for head in heads]
    ends = [_branch_op(tape, head, 64) for head in heads]
    tape.leave(_branch_op(tape, ends[0], 64, *ends[1:]), 0, Role.OUTPUT)
    return tape.graph()


def _branch_op(tape: Tape, head: int, size_B: int, *others: int) -> int:
    output = tape.value(size_B)
    tape.recipe("f", (head, *others), (output,), 1e-3)
    return output


def random_graph(seed: int, recipes: int = 8, segments: int = 2, mirrored: bool = False) -> Graph:
    """A random small graph with everything: several outputs, masks, random recipes, opaque ones, dead ones, updates.

    Mirrored: the second half reads the newest value and what the first half made, last first, as a backward does.
    """
    dice = random.Random(seed)
    tape = Tape(f"random{seed}")
    tape.segment("s0")
    there = [tape.given(dice.randint(1, 4) * 8192, persistent=dice.random() < 0.3) for _ in range(2)]
    made: list[int] = []
    for k in range(recipes):
        if len(tape.segments) < segments and k >= recipes * len(tape.segments) // segments:
            tape.segment(f"s{len(tape.segments)}")
            if dice.random() < 0.5:
                there.append(tape.given(dice.randint(1, 4) * 8192, Role.TANGENT, arrives=len(tape.segments) - 1))
        reads = tuple(dice.sample(there, min(len(there), dice.randint(1, 3))))
        if mirrored:
            back = 2 + 2 * (recipes - k) - recipes // 2
            reads = (there[-1], *((there[min(back, len(there) - 1)],) if 2 * k >= recipes else ()), *reads[: k % 2])
        reads = tuple(dict.fromkeys(reads))
        outputs = tuple(tape.value(dice.randint(0, 6) * 8192) for _ in range(dice.choice((1, 1, 1, 2, 3))))
        time_s, workspace_B = dice.randint(1, 9) * 1e-3, dice.choice((0, 0, 4096, 16384))
        kind = dice.random()
        if kind < 0.15:
            state = tape.value(STATE_B, Role.GENERATOR)
            tape.recipe("random", reads, (*outputs, state), time_s, workspace_B, Effect.RANDOM, state)
            tape.recipe("random", reads, outputs, time_s * 2, workspace_B, state=state, in_program=False)
        else:
            tape.recipe("f", reads, outputs, time_s, workspace_B, Effect.OPAQUE if kind < 0.25 else Effect.PURE)
        there.extend(outputs)
        made.extend(outputs)
    last = len(tape.segments) - 1
    born = {v: tape.recipes[r].segment for r in tape.program for v in tape.recipes[r].outputs}
    read_in = {v: tape.recipes[r].segment for r in tape.program for v in tape.recipes[r].read_values}
    for v in dice.sample(made, max(1, len(made) // 4)):
        leaves = dice.randint(born[v], last)
        held = dice.random() < 0.7 or read_in.get(v, -1) > leaves
        tape.leave(v, leaves, Role.OUTPUT, held)
    return tape.graph()


NAMED = {
    "chain": lambda: chain(6),
    "bundle": lambda: chain(4, parts=2),
    "gpt": lambda: gpt(2),
    "resnet": lambda: resnet((1, 1, 1, 1)),
    "unet": lambda: unet(2),
}
"""The graphs of networks on which planners are compared, small, by name."""
