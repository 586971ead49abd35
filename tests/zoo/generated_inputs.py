"""Inputs for networks nobody looked at: from the signature, the configuration, and what the network objects to."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.zoo.small_configurations import PLAIN_WORDS, VOCABULARY

BATCH, LENGTH, MOST_IMAGE_TOKENS = 4, 32, 80
Inputs = dict[str, Any]


def of_config(config: Any, *names: str, default: Any = None) -> Any:
    """The first of these attributes that the configuration or one of its parts has."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return value
    for value in vars(config).values():
        if hasattr(value, "to_dict"):
            found = of_config(value, *names)
            if found is not None:
                return found
    return default


class Inputs_of:
    """Variants of inputs for one model, likely ones first.

    Arguments:
        seed: of everything drawn; another seed gives another batch of the same shapes.
        image_tokens: how many tokens of a sequence stand for its image.
    """

    def __init__(self, model: nn.Module, seed: int, image_tokens: int = 0) -> None:
        self.config, self.kind = model.config, type(model).__name__
        self.names = inspect.signature(model.forward).parameters
        self.main = getattr(model, "main_input_name", "input_ids")
        self.g = torch.Generator().manual_seed(seed)
        self.image_tokens = image_tokens

    def variants(self) -> Iterator[Inputs]:
        """Complete sets of keyword arguments."""
        for base in self._bases():
            for labels in self._labels(base):
                yield base | labels

    def _bases(self) -> Iterator[Inputs]:
        text = self._text() if "input_ids" in self.names else {}
        seen = self._main_inputs()
        if text and seen:
            for inputs in seen:
                yield text | inputs
            for inputs in seen:
                yield inputs
            yield text
        elif seen:
            yield from seen
        if text and not seen:
            yield text
        if text and "decoder_input_ids" in self.names:
            yield text | {"decoder_input_ids": self._words()}
        for inputs in seen:
            if "decoder_input_ids" in self.names and "input_ids" not in self.names:
                yield inputs | {"decoder_input_ids": self._words()}
        if text and "attention_mask" in text:
            yield {k: v for k, v in text.items() if k != "attention_mask"}

    def _words(self, length: int | None = None) -> torch.Tensor:
        low, high = PLAIN_WORDS
        high = min(high, int(of_config(self.config.get_text_config(), "vocab_size", default=VOCABULARY)))
        return torch.randint(min(low, high - 1), high, (BATCH, length or LENGTH), generator=self.g)

    def _text(self) -> Inputs:
        ids = self._words(LENGTH + self.image_tokens)
        if self.image_tokens:
            token = of_config(self.config, "image_token_id", "image_token_index", "audio_token_id", "audio_token_index")
            ids[:, 1 : 1 + self.image_tokens] = VOCABULARY - 1 if token is None else token
        found: Inputs = {"input_ids": ids}
        if "attention_mask" in self.names:
            found["attention_mask"] = torch.ones_like(ids)
            found["attention_mask"][-1, -3:] = 0
        if "bbox" in self.names:
            corners = torch.randint(0, 30, (*ids.shape, 2), generator=self.g)
            found["bbox"] = torch.cat([corners, corners + 20], dim=-1)
        if "mm_token_type_ids" in self.names:
            found["mm_token_type_ids"] = torch.zeros_like(ids)
            found["mm_token_type_ids"][:, 1 : 1 + self.image_tokens] = 1
        return found

    def _main_inputs(self) -> list[Inputs]:
        """What is seen or heard, in the shapes that are usual."""
        for name in (
            "pixel_values",
            "input_features",
            "input_values",
            "past_values",
            "pixel_values_videos",
            "flattened_patches",
        ):
            if name in self.names:
                return [{name: value} | more for value, more in getattr(self, f"_{name}")()]
        return []

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.g)

    def _edge(self) -> tuple[int, int]:
        size = of_config(self.config, "image_size", "img_size", "input_size", default=32)
        if isinstance(size, dict):
            size = list(size.values())[:2]
        pair = list(size)[:2] if isinstance(size, (list, tuple)) else [size, size]
        return int(pair[0]), int(pair[-1])

    def _pixel_values(self) -> Iterator[tuple[torch.Tensor, Inputs]]:
        channels = of_config(self.config, "num_channels", "in_channels", "in_chans", default=3)
        channels = channels if isinstance(channels, int) else 3
        height, width = self._edge()
        if "image_grid_thw" in self.names or "grid_thw" in self.names:
            name = "image_grid_thw" if "image_grid_thw" in self.names else "grid_thw"
            patch = of_config(self.config, "patch_size", default=8)
            deep = of_config(self.config, "temporal_patch_size", default=1)
            grid = torch.tensor([[1, 4, 4]] * BATCH)
            yield self._normal(BATCH * 16, channels * deep * patch * patch), {name: grid}
            yield self._normal(BATCH * 16, channels, patch, patch), {name: grid}
        frames = of_config(self.config, "num_frames", default=4)
        image, film = (BATCH, channels, height, width), (BATCH, int(frames), channels, height, width)
        more: Inputs = {}
        if "bool_masked_pos" in self.names and "MaskedImage" in self.kind:
            patch = of_config(self.config, "patch_size", default=8)
            patch = patch if isinstance(patch, int) else patch[0]
            patches = (height // patch) * (width // patch)
            more["bool_masked_pos"] = torch.arange(patches)[None].expand(BATCH, -1) % 2 == 0
        shapes = [film, image] if re.search("Video|TimesformerM|VJEPA", self.kind) else [image, film]
        for shape in shapes:
            yield self._normal(*shape), more
        yield self._normal(BATCH, 1, channels, height, width), more
        yield self._normal(BATCH, channels, 64, 64), more

    def _pixel_values_videos(self) -> Iterator[tuple[torch.Tensor, Inputs]]:
        height, width = self._edge()
        frames = int(of_config(self.config, "frames_per_clip", "num_frames", default=4))
        yield self._normal(BATCH, min(frames, 4), 3, height, width), {}

    def _input_features(self) -> Iterator[tuple[torch.Tensor, Inputs]]:
        bins = of_config(
            self.config, "num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim", "n_mels", default=80
        )
        frames = int(of_config(self.config, "max_source_positions", default=32)) * 2
        masks: Inputs = {}
        for name in ("input_features_mask", "attention_mask"):
            if name in self.names and "input_ids" not in self.names:
                masks = {name: torch.ones(BATCH, frames, dtype=torch.int64)}
                break
        yield self._normal(BATCH, bins, frames), {}
        yield self._normal(BATCH, frames, bins), masks
        yield self._normal(BATCH, frames, bins), {}
        yield self._normal(BATCH, 1, frames, bins), {}

    def _input_values(self) -> Iterator[tuple[torch.Tensor, Inputs]]:
        bins = int(of_config(self.config, "num_mel_bins", default=80))
        frames = int(of_config(self.config, "max_length", default=64))
        yield self._normal(BATCH, 3200), {}
        yield self._normal(BATCH, 1, 3200), {}
        yield self._normal(BATCH, frames, bins), {}
        yield self._normal(BATCH, bins, frames), {}

    def _past_values(self) -> Iterator[tuple[torch.Tensor, Inputs]]:
        config = self.config
        future = int(getattr(config, "prediction_length", None) or 8)
        past = int(getattr(config, "context_length", None) or 32) + max(getattr(config, "lags_sequence", None) or [0])
        wide = int(getattr(config, "num_input_channels", None) or getattr(config, "input_size", None) or 1)
        known = int(getattr(config, "num_time_features", 0) or 0) + int(
            getattr(config, "num_dynamic_real_features", 0) or 0
        )
        for shape in ((past, wide), (past,)):
            more: Inputs = {}
            for name, length in (("past", past), ("future", future)):
                if f"{name}_time_features" in self.names:
                    more[f"{name}_time_features"] = self._normal(BATCH, length, known)
                if f"{name}_observed_mask" in self.names:
                    more[f"{name}_observed_mask"] = torch.ones(BATCH, length, *shape[1:])
            if "future_values" in self.names:
                more["future_values"] = self._normal(BATCH, future, *shape[1:])
            yield self._normal(BATCH, *shape), more

    def _flattened_patches(self) -> Iterator[tuple[torch.Tensor, Inputs]]:
        wide = int(of_config(self.config, "patch_embed_hidden_size", default=768))
        patches = self._normal(BATCH, 16, wide)
        patches[..., :2] = torch.arange(16)[:, None].float() % 4 + 1
        yield patches, {}

    def _labels(self, base: Inputs) -> Iterator[Inputs]:
        """Targets where the forward takes them; none at last."""
        classes = int(getattr(self.config, "num_labels", None) or 2)
        if "return_loss" in self.names and "labels" not in self.names:
            yield {"return_loss": True}
        if "labels" in self.names:
            for target in self._targets(base, classes):
                yield {"labels": target}
        if "mask_labels" in self.names and "class_labels" in self.names:
            edge = self._edge()
            masks = [(torch.rand(2, *edge, generator=self.g) > 0.5).float() for _ in range(BATCH)]
            yield {"mask_labels": masks, "class_labels": [torch.tensor([0, 1])] * BATCH}
        if "start_positions" in self.names:
            yield {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 5])}
        yield {}

    def _targets(self, base: Inputs, classes: int) -> Iterator[Any]:
        of_one = torch.randint(0, classes, (BATCH,), generator=self.g)
        ids = base.get("input_ids")
        if "Detection" in self.kind:
            boxes = 0.25 + 0.25 * torch.rand(2, 4, generator=self.g)
            yield [{"class_labels": torch.tensor([0, 1]), "boxes": boxes} for _ in range(BATCH)]
        elif "Segmentation" in self.kind:
            yield torch.randint(0, classes, (BATCH, *self._edge()), generator=self.g)
        elif "Depth" in self.kind:
            yield torch.rand(BATCH, *self._edge(), generator=self.g) + 0.5
        elif "CTC" in self.kind or "RNNT" in self.kind or "TDT" in self.kind:
            yield torch.randint(3, 12, (BATCH, 4), generator=self.g)
        elif re.search("SequenceClassification|ImageClassification|AudioClassification|VideoClassification", self.kind):
            yield of_one
        elif "TokenClassification" in self.kind and ids is not None:
            yield torch.randint(0, classes, ids.shape, generator=self.g)
        elif ids is not None:
            yield base.get("decoder_input_ids", ids)
        else:
            yield self._words()
            yield of_one
