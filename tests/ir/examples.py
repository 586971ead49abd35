"""Small networks by hand: what each kind of recipe looks like. Units: `_B` bytes, `_s` seconds."""

from __future__ import annotations

from lowtide.ir.graph import Effect, Graph, Group, Option, Role
from tests.ir.sketch import Sketch


def chain() -> Graph:
    """Two segments: x -> a -> b -> y and back; every recipe is pure."""
    sketch = Sketch(parts=(0, 0))
    weight = sketch.persistent(100, name="weight")
    x = sketch.value(10, Role.INPUT, "x", arrives=0)
    a, b = sketch.value(20, name="a"), sketch.value(20, name="b")
    y = sketch.value(4, Role.OUTPUT, "y", leaves=0, held=False)
    tangent = sketch.value(4, Role.TANGENT, "tangent", arrives=1)
    grad = sketch.value(100, Role.GRADIENT, "grad", leaves=1)
    sketch.recipe("linear", [x, weight], [a], inner_B=[30], time_s=2.0)
    sketch.recipe("relu", [a], [b], time_s=1.0)
    sketch.recipe("sum", [b], [y], time_s=0.5)
    sketch.recipe("backward", [tangent, b, x], [grad], segment=1, inner_B=[5], time_s=4.0)
    return sketch.build()


def convolution() -> Graph:
    """A convolution with two implementations: quick with 500 B of workspace, or slow with none."""
    sketch = Sketch()
    weight = sketch.persistent(36, name="weight")
    x = sketch.value(64, Role.INPUT, "x", arrives=0)
    y = sketch.value(64, Role.OUTPUT, "y", leaves=0)
    quick = sketch.recipe("convolution", [x, weight], [y], inner_B=[500], time_s=1.0)
    slow = sketch.again(quick, time_s=3.0)
    sketch.group("convolution", [quick], [slow])
    return sketch.build()


def dropout() -> Graph:
    """Dropout, forward and backward chosen as one: a mask of bools, or one packed to bits."""
    sketch = Sketch(parts=(0, 0))
    x = sketch.persistent(800, Role.INPUT, "x")
    y = sketch.value(800, Role.OUTPUT, "y", leaves=0, held=False)
    mask, packed = sketch.value(200, name="mask"), sketch.value(25, name="packed")
    state = sketch.value(16, Role.GENERATOR, "state")
    tangent = sketch.value(800, Role.TANGENT, "tangent", arrives=1)
    grad = sketch.value(800, Role.GRADIENT, "grad", leaves=1)
    forward = sketch.recipe("dropout", [x], [y, mask], effect=Effect.RANDOM, state=state)
    backward = sketch.recipe("dropout_backward", [tangent, mask], [grad], segment=1)
    sketch.again(forward, effect=Effect.PURE)
    packing = sketch.recipe("pack", [mask], [packed], program=False)
    unpacking = sketch.recipe("unpack", [packed], [mask], segment=1, program=False)
    forward_packed = sketch.fused([forward, packing], [x], [y, packed], effect=Effect.RANDOM, state=state)
    backward_packed = sketch.fused([unpacking, backward], [tangent, packed], [grad])
    sketch.group("dropout", [forward, backward], [forward_packed, backward_packed])
    return sketch.build()


def fused_loss() -> Graph:
    """A loss on logits of 1000 B, or fused with the projection before it, so that the logits never exist."""
    sketch = Sketch(parts=(0, 0))
    weight = sketch.persistent(100, name="weight")
    hidden = sketch.persistent(50, Role.INPUT, "hidden")
    logits, loss = sketch.value(1000, name="logits"), sketch.value(4, Role.OUTPUT, "loss", leaves=0)
    tangent = sketch.value(4, Role.TANGENT, "tangent", arrives=1)
    grad = sketch.value(100, Role.GRADIENT, "grad", leaves=1)
    project = sketch.recipe("project", [hidden, weight], [logits])
    entropy = sketch.recipe("cross_entropy", [logits], [loss])
    backward = sketch.recipe("backward", [tangent, logits, hidden, weight], [grad], segment=1)
    fused = sketch.fused([project, entropy], [hidden, weight], [loss], inner_B=[60])
    fused_backward = sketch.fused([project, backward], [tangent, hidden, weight], [grad], segment=1, inner_B=[60])
    sketch.group("loss", [project, entropy, backward], [fused, fused_backward])
    return sketch.build()


def in_place() -> Graph:
    """A ReLU that may overwrite its input, whose storage then holds the output."""
    sketch = Sketch()
    x = sketch.persistent(40, Role.INPUT, "x")
    a, b = sketch.value(40, name="a"), sketch.value(40, Role.OUTPUT, "b", leaves=0)
    sketch.recipe("linear", [x], [a])
    relu = sketch.recipe("relu", [a], [b])
    relu_ = sketch.again(relu, consumes=[(a, 0)])
    sketch.group("relu", [relu], [relu_])
    return sketch.build()


def update() -> Graph:
    """A step of gradient descent that overwrites the weight: its storage now holds the new one."""
    sketch = Sketch()
    weight = sketch.persistent(40, name="weight", leaves=None)
    x = sketch.value(40, Role.INPUT, "x", arrives=0)
    new = sketch.value(40, Role.UPDATE, "new", leaves=0)
    grad = sketch.value(40, name="grad")
    sketch.recipe("gradient", [x, weight], [grad])
    sketch.recipe("sgd_", [weight, grad], [new], consumes=[(weight, 0)])
    return sketch.build()


def host_resident_update() -> Graph:
    """The same where the weight may be host-resident; recipe 2 updates it there."""
    sketch = Sketch()
    weight = sketch.persistent(40, name="weight", movable=True)
    x = sketch.value(40, Role.INPUT, "x", arrives=0)
    new = sketch.value(40, Role.UPDATE, "new", leaves=0, replaces=weight)
    grad = sketch.value(40, name="grad")
    sketch.recipe("gradient", [x, weight], [grad])
    on_device = sketch.recipe("sgd_", [weight, grad], [new], consumes=[(weight, 0)], effect=Effect.OPAQUE)
    on_host = sketch.recipe(
        "sgd_", [weight, grad], [new], consumes=[(weight, 0)], effect=Effect.OPAQUE, engine="host", program=False
    )
    sketch.groups.append(Group("update", (Option("device", (on_device,)), Option("host", (on_host,)))))
    return sketch.build()


def bundle() -> Graph:
    """Two captured graphs as one: the first hands `y` over to the second."""
    sketch = Sketch(parts=(0, 1))
    x = sketch.value(8, Role.INPUT, "x", arrives=0)
    inner = sketch.value(8, name="inner")
    y = sketch.value(8, Role.OUTPUT, "y", leaves=0, arrives=1)
    z = sketch.value(8, Role.OUTPUT, "z", leaves=1)
    sketch.recipe("one", [x], [inner])
    sketch.recipe("two", [inner], [y])
    sketch.recipe("three", [y], [z], segment=1)
    return sketch.build()


def opaque_then_random() -> Graph:
    """An opaque operator before a random one."""
    sketch = Sketch(parts=(0, 0))
    x = sketch.persistent(8, Role.INPUT, "x")
    a, b = sketch.value(8, name="a"), sketch.value(8, Role.OUTPUT, "b", leaves=0)
    state = sketch.value(16, Role.GENERATOR, "state")
    sketch.recipe("custom", [x], [a], effect=Effect.OPAQUE)
    noise = sketch.recipe("noise", [a], [b], effect=Effect.RANDOM, state=state)
    sketch.again(noise, effect=Effect.PURE)
    c = sketch.value(8, Role.OUTPUT, "c", leaves=1)
    sketch.recipe("last", [a], [c], segment=1)
    return sketch.build()
