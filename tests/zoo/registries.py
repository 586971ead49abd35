"""One small network of every family that transformers, timm and torchvision register, found by rules.

A family is a folder of `transformers.models`, a module of `timm.models` or of `torchvision.models`. `families` lists
them; `network_of` finds the first class, configuration and inputs with which plain PyTorch trains, without downloads.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests import torchvision_shim
from tests.zoo.generated_inputs import BATCH, MOST_IMAGE_TOKENS, Inputs, Inputs_of
from tests.zoo.small_configurations import RECIPES, small

torchvision_shim.install()

MOST_PARAMETERS = {"transformers": 3_000_000, "timm": 90_000_000, "torchvision": 90_000_000}
"""Training plainly and fitted keeps about 14 copies of the parameters: 90 million take 5 GiB."""
MOST_WEIGHTS, NARROW = 8_000_000, 256
"""Of one linear layer, and the features to which a larger one is narrowed."""
LARGE = 1_000_000
"""Numbers of one image or film of which a batch has one."""
SEARCH_s = 60.0
"""Seconds of processor time for finding a network of one family."""

# Which class of a family is taken, by the mappings of transformers' auto classes: what trains most of the family first.
HEADS = (
    "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "MASKED_LM", "IMAGE_TEXT_TO_TEXT", "CAUSAL_LM", "CTC", "RNNT", "TDT",
    "IMAGE_CLASSIFICATION", "VIDEO_CLASSIFICATION", "AUDIO_CLASSIFICATION", "SEMANTIC_SEGMENTATION", "OBJECT_DETECTION",
    "UNIVERSAL_SEGMENTATION", "INSTANCE_SEGMENTATION", "DEPTH_ESTIMATION", "MASKED_IMAGE_MODELING", "MULTIMODAL_LM",
    "TIME_SERIES_PREDICTION", "TEXT_TO_SPECTROGRAM",
)  # fmt: skip


class NotApplicable(Exception):
    """No network of this family trains here; the text says why."""


@dataclass
class Found:
    """A network that trains.

    Arguments:
        text: which class, with which configuration and inputs, for people.
        build: makes the module in training mode, from a fixed seed.
        batches: keyword arguments or one tuple for each of so many steps.
        outputs: calls a module with a batch.
        loss: from outputs and batch, where the outputs do not hold one.
    """

    text: str
    build: Callable[[], nn.Module]
    batches: Callable[[int], list[Any]]
    outputs: Callable[[nn.Module, Any], Any]
    loss: Callable[[Any, Any], torch.Tensor]

    def loss_of(self, module: nn.Module, batch: Any) -> torch.Tensor:
        """The loss of a batch; other outputs die at once."""
        return self.loss(self.outputs(module, batch), batch)


def families() -> list[str]:
    """Every family by name, `library/family`, sorted."""
    found = [f"transformers/{name}" for name in _transformers_types()]
    found += [f"timm/{name}" for name in _timm_modules()]
    found += [f"torchvision/{name}" for name in _torchvision_modules()]
    return sorted(found)


def network_of(name: str) -> Found:
    """A network of a family that trains in plain PyTorch.

    Arguments:
        name: of `families`.

    Raises:
        NotApplicable: if none does; the text has the reason of the attempt that came furthest.
    """
    library, _, family = name.partition("/")
    search = {"transformers": _of_transformers, "timm": _of_timm, "torchvision": _of_torchvision}[library]
    return search(family)


# --- what all have in common ----------------------------------------------------------------------------------------


def floating(outputs: Any) -> Iterator[torch.Tensor]:
    """The tensors of an output that a loss can be made of, caches left out."""
    if isinstance(outputs, torch.Tensor):
        if outputs.requires_grad and outputs.is_floating_point() and outputs.numel():
            yield outputs
    elif isinstance(outputs, dict):
        for key, value in outputs.items():
            if "past_key" not in str(key) and "cache" not in str(key):
                yield from floating(value)
    elif isinstance(outputs, (list, tuple)):
        for value in outputs:
            yield from floating(value)


def weighted(outputs: Any) -> torch.Tensor:
    """A loss of any outputs: a fixed weighted mean of each, so that no gradient is zero by symmetry."""
    total = torch.zeros(())
    for tensor in floating(outputs):
        weights = torch.cos(torch.arange(tensor.numel(), dtype=torch.float32)).view(tensor.shape)
        total = total + (tensor.float() * weights).mean()
    return total


def trains(module: nn.Module, found: Found) -> None:
    """One plain step.

    Raises:
        Exception: what the module raises.
        ArithmeticError: if the loss or a gradient is not finite, or no parameter has one.
    """
    torch.manual_seed(1)
    loss = found.loss_of(module, found.batches(1)[0])
    if not math.isfinite(loss.item()):
        raise ArithmeticError("the loss is not finite")
    loss.backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    if not gradients or not any(bool((g.to_dense() != 0).any()) for g in gradients):
        raise ArithmeticError("no parameter gets a gradient")
    if not all(bool(torch.isfinite(g.to_dense()).all()) for g in gradients):
        raise ArithmeticError("a gradient is not finite")


def parameters_of(make: Callable[[], nn.Module]) -> int:
    """How many parameters a module would have; nothing is allocated."""
    with torch.device("meta"):
        return sum(p.numel() for p in make().parameters())


def _seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return make().train()

    return build


def shortened(model: nn.Module) -> nn.Module:
    """The model with at most two of the equal layers that follow each other, so that a step takes seconds."""
    for module in list(model.modules()):
        if type(module) not in (nn.Sequential, nn.ModuleList):
            continue
        kept: list[tuple[str, nn.Module]] = []
        for name, child in module._modules.items():
            if len(kept) < 2 or not _alike(kept[-1][1], child) or not _alike(kept[-2][1], child):
                kept.append((name, child))
        renumbered = isinstance(module, nn.ModuleList)
        module._modules = {str(i) if renumbered else name: child for i, (name, child) in enumerate(kept)}
    return model


def narrowed(model: nn.Module) -> nn.Module:
    """The model with few features between linear layers of which the first is oversized, as in old classifiers."""
    for module in list(model.modules()):
        if type(module) is not nn.Sequential:
            continue
        wide: nn.Linear | None = None  # followed so far by nothing that depends on how many features there are
        position = ""
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                if wide is not None:
                    module._modules[position] = nn.Linear(wide.in_features, NARROW, wide.bias is not None)
                    child = module._modules[name] = nn.Linear(NARROW, child.out_features, child.bias is not None)
                wide, position = (child if child.weight.numel() > MOST_WEIGHTS else None), name
            elif type(child).__module__ not in ("torch.nn.modules.activation", "torch.nn.modules.dropout"):
                wide = None
    return model


def _alike(left: nn.Module, right: nn.Module) -> bool:
    def shape(module: nn.Module) -> Any:
        return [(n, type(m)) for n, m in module.named_modules()], [(n, t.shape) for n, t in module.state_dict().items()]

    return bool(left.state_dict()) and shape(left) == shape(right)


def said(error: BaseException) -> str:
    """An error's kind and the beginning of its text, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}{'...' if len(text) > 200 else ''}"


class _Furthest:
    """Of many attempts, the reason of the one that came furthest."""

    def __init__(self) -> None:
        self.stage, self.reason = -1, "it has no class that the library registers for training"
        self.begun_s = time.process_time()

    def note(self, stage: int, reason: str) -> None:
        """Keeps the first reason of the furthest stage."""
        if stage > self.stage:
            self.stage, self.reason = stage, reason

    def check_time(self) -> None:
        """Raises: NotApplicable: if the search took too long."""
        if time.process_time() - self.begun_s > SEARCH_s:
            raise NotApplicable(f"{self.reason} (nothing else was found in {SEARCH_s:.0f} s)")


# --- transformers ---------------------------------------------------------------------------------------------------


def _transformers_types() -> dict[str, list[str]]:
    """Model types by family, the type that has the family's name first."""
    from transformers.models.auto import configuration_auto as auto

    found: dict[str, list[str]] = {}
    for kind in auto.CONFIG_MAPPING_NAMES:
        found.setdefault(auto.model_type_to_module_name(kind), []).append(kind)
    return {name: sorted(kinds, key=lambda k: k.replace("-", "_") != name) for name, kinds in found.items()}


def _candidates(family: str) -> list[tuple[str, str]]:
    """(model type, class name) of a family, by `HEADS`."""
    from transformers.models.auto import modeling_auto as auto

    found: list[tuple[str, str]] = []
    usual = [f"MODEL_FOR_{head}_MAPPING_NAMES" for head in HEADS]
    others = sorted(n for n in vars(auto) if re.fullmatch(r"MODEL_FOR_\w+_MAPPING_NAMES", n) and n not in usual)
    for kind in _transformers_types()[family]:
        for mapping in (*usual, *others, "MODEL_MAPPING_NAMES"):
            classes = dict(getattr(auto, mapping, {})).get(kind, ())
            for name in [classes] if isinstance(classes, str) else classes:
                if (kind, name) not in found:
                    found.append((kind, name))
    return found


def _of_transformers(family: str) -> Found:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    furthest = _Furthest()
    for kind, class_name in _candidates(family):
        model_class = getattr(transformers, class_name, None)
        if model_class is None:
            continue
        for index, recipe in enumerate(RECIPES):
            furthest.check_time()
            try:
                config = small(CONFIG_MAPPING[kind], recipe)
            except Exception as error:
                furthest.note(0, f"its configuration cannot be made small: {said(error)}")
                continue
            found = _with_config(model_class, config, furthest, f"{class_name}, recipe {index}")
            if found is not None:
                return found
    raise NotApplicable(furthest.reason)


def _with_config(model_class: Any, config: Any, furthest: _Furthest, text: str) -> Found | None:
    build = _seeded(lambda: model_class(config))
    try:
        count = parameters_of(build)
        if count > MOST_PARAMETERS["transformers"]:
            furthest.note(1, f"{model_class.__name__} has {count / 1e6:.0f} M parameters in the smallest configuration")
            return None
        model = build()
    except Exception as error:
        furthest.note(1, f"{model_class.__name__} cannot be built small: {said(error)}")
        return None
    image_tokens = 0
    for _ in range(3):
        wanted = image_tokens
        for variant, inputs in enumerate(Inputs_of(model, 1, image_tokens).variants()):
            furthest.check_time()
            found = _called(
                model, build, variant, image_tokens, f"{text}, {count / 1e6:.2f} M parameters: {', '.join(inputs)}"
            )
            error = _error_of(build, found)
            if error is None:
                return found
            furthest.note(2, f"{model_class.__name__} does not train on generated inputs: {said(error)}")
            wanted = _tokens_asked(str(error), image_tokens)
            if wanted != image_tokens:
                break
        if wanted == image_tokens:
            return None
        image_tokens = wanted
    return None


def _tokens_asked(text: str, now: int) -> int:
    """How many tokens of each sequence have to stand for its image, from what a network objects."""
    match = re.search(r"tokens?:? (\d+).{0,40}features:? (\d+)", text)
    if not match:
        return now
    tokens, features = int(match[1]), int(match[2])
    asked = now * features // tokens if tokens else features // BATCH
    return asked if 0 < asked <= MOST_IMAGE_TOKENS else now


def _called(model: nn.Module, build: Callable[[], nn.Module], variant: int, image_tokens: int, text: str) -> Found:
    def batches(count: int) -> list[Inputs]:
        return [
            next(itertools.islice(Inputs_of(model, 1 + seed, image_tokens).variants(), variant, None))
            for seed in range(count)
        ]

    def loss(outputs: Any, _: Inputs) -> torch.Tensor:
        own = getattr(outputs, "loss", None)
        return own if isinstance(own, torch.Tensor) and own.requires_grad and own.numel() == 1 else weighted(outputs)

    return Found(text, build, batches, lambda m, b: m(**b), loss)


def _error_of(build: Callable[[], nn.Module], found: Found) -> Exception | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trains(build(), found)
    except Exception as error:
        return error
    return None


# --- timm and torchvision -------------------------------------------------------------------------------------------

_SMALL_NAMES = (
    "test_", "atto", "femto", "pico", "nano", "xxtiny", "tiny", "xxs", "xx_small", "extra_small", "xs", "x_small",
    "mini", "small", "lite", "_s", "_b0", "_m0", "_t0", "_0", "n_", "10", "11", "18", "26",
)  # fmt: skip


def _rank(name: str) -> tuple[int, int, str]:
    """Names that promise a small network first."""
    rank = next((i for i, part in enumerate(_SMALL_NAMES) if part in name), len(_SMALL_NAMES))
    return rank, len(name), name


def _smallest(names: list[str], make: Callable[[str], nn.Module]) -> list[tuple[int, str]]:
    """The smallest by parameters of those whose names promise it."""
    found = []
    for name in sorted(names, key=_rank)[:6]:
        try:
            found.append((parameters_of(lambda name=name: make(name)), name))
        except Exception:
            found.append((10**12, name))
    return sorted(found)


def _timm_modules() -> list[str]:
    import timm
    from timm.models import _registry

    return [m for m in _registry.list_modules() if timm.list_models(module=m)]


def _torchvision_modules() -> dict[str, list[str]]:
    from torchvision import models

    found: dict[str, list[str]] = {}
    for name in models.list_models():
        module = models.get_model_builder(name).__module__.removeprefix("torchvision.models.")
        if not module.startswith("quantization"):
            found.setdefault(module, []).append(name)
    return found


def _first_that_trains(library: str, sized: list[tuple[int, str]], variants: Callable[[str], Iterator[Found]]) -> Found:
    furthest = _Furthest()
    for count, name in sized:
        if count > MOST_PARAMETERS[library]:
            furthest.note(
                1,
                f"{name}, its smallest network, has {count / 1e6:.0f} M parameters"
                if count < 10**12
                else f"{name} cannot be built",
            )
            continue
        for found in variants(name):
            furthest.check_time()
            error = _error_of(found.build, found)
            if error is None:
                found.text += f", {count / 1e6:.1f} M parameters"
                return found
            furthest.note(2, f"{name} does not train here: {said(error)}")
    raise NotApplicable(furthest.reason)


def _images(count: int, *shape: int, classes: int, dense: bool = False) -> list[Any]:
    g = torch.Generator().manual_seed(1)
    batch = 2 if math.prod(shape) < LARGE else 1
    targets = (batch, *shape[-2:]) if dense else (batch,)
    return [
        (torch.randn(batch, *shape, generator=g), torch.randint(0, classes, targets, generator=g)) for _ in range(count)
    ]


def _classified(outputs: Any, batch: Any) -> torch.Tensor:
    """Cross entropy of every answer that has the targets' shape; of what has not, a weighted mean."""
    answers = list(floating(outputs))
    if not answers:
        raise ArithmeticError("no output depends on a parameter")
    if all(a.dim() == batch[1].dim() + 1 and a.shape[2:] == batch[1].shape[1:] for a in answers):
        return sum((0.4 * F.cross_entropy(a, batch[1]) for a in answers[1:]), F.cross_entropy(answers[0], batch[1]))
    return weighted(answers)


def _of_timm(family: str) -> Found:
    import timm

    def make(name: str, short: bool = True, **options: Any) -> nn.Module:
        model = timm.create_model(name, num_classes=7, **options)
        return shortened(model) if short else model

    def variants(name: str) -> Iterator[Found]:
        for short, size, options in itertools.product((True, False), (64, 128, 224, 256), (True, False)):
            more = {"img_size": size} if options else {}
            yield Found(
                f"{name}{', fewer layers' if short else ''}, images of {size}",
                _seeded(lambda more=more, short=short: make(name, short, **more)),
                lambda count, size=size: _images(count, 3, size, size, classes=7),
                lambda m, b: m(b[0]),
                _classified,
            )

    return _first_that_trains("timm", _smallest(timm.list_models(module=family), make), variants)


def _of_torchvision(family: str) -> Found:
    from torchvision import models

    torchvision_shim.let_detectors_run()

    def options_of(name: str) -> dict[str, Any]:
        builder = models.get_model_builder(name)
        parameters = inspect.signature(builder).parameters
        return {"weights": None} | {k: None for k in ("weights_backbone",) if k in parameters}

    def make(name: str, short: bool = True, **more: Any) -> nn.Module:
        model = narrowed(models.get_model(name, **options_of(name), **more))
        return shortened(model) if short else model

    def registered(name: str) -> dict[str, Any]:
        """What the registry knows of a network: of how many parameters, and how many frames it takes at least."""
        return next(iter(models.get_model_weights(name))).meta

    def count_of(name: str) -> int:
        try:
            return parameters_of(lambda: make(name))
        except Exception:  # not every constructor runs without data
            return int(registered(name)["num_params"])

    def variants(name: str) -> Iterator[Found]:
        frames = max(8, int(registered(name).get("min_temporal_size", 1)))
        for short, size in itertools.product((True, False), (64, 96, 224, 299)):
            if "detection" in family:
                more: dict[str, Any] = {"num_classes": 4, "min_size": size, "max_size": size}
                own = {
                    "num_classes": 4
                }  # networks with a size of their own: a large one, so that one image is tried first
                for images, extra in ((2, more), (1, own), (2, own)):
                    build = _seeded(lambda extra=extra, short=short: make(name, short, **extra))
                    yield _detector(name, size, images, build)
                continue
            if "optical_flow" in family:
                yield _flow(name, _seeded(lambda short=short: make(name, short)))
                continue
            shape = (3, frames, size, size) if "video" in family else (3, size, size)
            for extra in ({}, {"image_size": size}):
                yield Found(
                    f"{name}{', fewer layers' if short else ''}, inputs of {' x '.join(map(str, shape))}",
                    _seeded(lambda extra=extra, short=short: make(name, short, num_classes=7, **extra)),
                    lambda count, shape=shape: _images(count, *shape, classes=7, dense="segmentation" in family),
                    lambda m, b: m(b[0]),
                    _classified,
                )

    names = _torchvision_modules()[family]
    return _first_that_trains("torchvision", sorted((count_of(name), name) for name in names), variants)


def _detector(name: str, size: int, images: int, build: Callable[[], nn.Module]) -> Found:
    def batches(count: int) -> list[Any]:
        g = torch.Generator().manual_seed(1)
        found = []
        for _ in range(count):
            corners = torch.rand(images, 2, 2, generator=g) * size / 2
            boxes = torch.cat([corners, corners + size / 3], dim=2)
            targets = [
                {
                    "boxes": b,
                    "labels": torch.tensor([1, 2]),
                    "masks": torch.ones(2, size, size, dtype=torch.uint8),
                    "keypoints": torch.cat([b[:, None, :2].expand(2, 17, 2), torch.ones(2, 17, 1)], dim=2),
                }
                for b in boxes
            ]
            found.append((list(torch.rand(images, 3, size, size, generator=g)), targets))
        return found

    return Found(
        f"{name}, images of {size}", build, batches, lambda m, b: m(*b), lambda o, _: sum(o.values(), torch.zeros(()))
    )


def _flow(name: str, build: Callable[[], nn.Module]) -> Found:
    def batches(count: int) -> list[Any]:
        g = torch.Generator().manual_seed(1)
        return [tuple(torch.rand(1, 3, 128, 128, generator=g) for _ in range(2)) for _ in range(count)]

    return Found(
        f"{name}, pairs of 128 x 128", build, batches, lambda m, b: m(*b, num_flow_updates=2), lambda o, _: weighted(o)
    )
