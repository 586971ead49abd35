"""Small configurations of transformers' families, made from their default ones by rules on names and values.

Nothing here knows a family: widths are divided by one factor, counts of layers, heads, experts and words are capped,
images get a few patches, and lists with an entry per layer keep one layer of each kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

VOCABULARY = 128
_SCALE = 0.25  # of networks that have a width for everything and a factor to it
PLAIN_WORDS = (3, 90)
"""Token ids that mean nothing special in any small configuration."""

_WIDEST = (
    "hidden_size",
    "d_model",
    "n_embd",
    "embed_dim",
    "dim",
    "hidden_dim",
    "hidden_sizes",
    "emb_dim",
    "embed_dims",
)
_SPECIAL = re.compile(r"token_(id|index)s?$|(^|_)(bos|eos|pad|sep|cls|blank|eod)(_id)?$|_token$")
_WORDS = re.compile(r"vocab_size|vocabulary|^n_vocab$|vocab_offset")
_CODES = re.compile(r"codebook_size|num_codevectors|^num_embeddings$|num_embeds")
_LAYERS = re.compile(r"^(num_.*(layers|blocks|depth)|n_layers?|.*_(layers|depth|n_layer|num_layers)|depth|layers)$")
_NO_LAYERS = re.compile(r"feat_extract|mtp|nextn|feature_layer|adapter|dense_replace|residual_layers|kv_shared")
_HEADS = re.compile(r"(^|_)(n_)?heads?$|num_(attn|attention|key_value|q|kv|query|v|k)_heads|num_.*_heads")
_HEAD_WIDTH = re.compile(r"head_dim$|^d_kv$|attention_head_size|^d_head$|^head_size$|_d_head$|dim_head$|_head_width$")
_EXPERTS = re.compile(r"^(moe_)?(num|n)_(local_|routed_)?experts$|^num_moe_experts$|^moe_num_experts$")
_CHOSEN = re.compile(
    r"(experts_per_tok|^top_?k|moe_top_?k|moe_k|num_selected_experts|experts_top_?k|router_top_?k)$|^moe_k$"
)
_POSITIONS = re.compile(
    r"position_embeddings$|^n_positions$|^n_ctx$|max_.*positions?$|max_seq|seq_len(gth)?$|context_length|max_length"
    r"|^max_pos|^block_size$|chunk_length|pos_emb_(height|width)$|num_position_embeddings|^max_img_size$|rel_extent"
)
_WINDOW = re.compile(
    r"sliding_window|window_size$|local_attention|attention_chunk_size|^chunk_size$|chunk_length|_window$"
)
_PIXELS = re.compile(r"image_size$|^img_size$|^input_size$|^crop_size$|image_resolution")
_WIDTH = re.compile(
    r"hidden|embed|inner|ffn|intermediate|d_model|d_ff|proj|channels?|planes|width|latent_dim|rank|mlp_dim|conv_dim"
    r"|_dim$|^dim$|filters|units|tdnn_dim|xvector|features$|pooler|codebook_dim|n_embd|_sizes$|^dims$|_size$|neck"
)
_NO_WIDTH = re.compile(
    r"vocab|token|position|^num_channels$|in_chans|kernel|stride|patch|image|img|rate|ratio|length|bucket|^max_|window|group"
    r"|audio_channels|batch|chunk|block|num_layers|mult|state_size|input_channels|_heads|time|window|merge|pool_size|mel"
    r"|_factor|type_vocab|feature_size|query_dim|^scale|bins|roi_|cache|shape_size|head_out|decoder_dim"
)
_INDICES = re.compile(r"ind(ex|ice)|idx|_layers$|extract_layers|layer_ids")


@dataclass(frozen=True)
class Recipe:
    """How small: every family takes the first recipe with which it trains.

    Arguments:
        width: the widest hidden size; other widths keep their proportion to it.
        heads: of attention, at most.
        layers: at most, if all are alike.
        image_size: edge of an image in pixels.
        patch_size: edge of a patch at most.
        even_heads: lists of head counts per stage begin with one head and keep their proportions.
        width_multiple: every width is a multiple of this.
    """

    width: int = 64
    heads: int = 4
    layers: int = 2
    image_size: int = 32
    patch_size: int = 8
    even_heads: bool = True
    width_multiple: int = 16


RECIPES = (
    Recipe(),
    Recipe(layers=4),
    Recipe(width=128, layers=4, width_multiple=32, image_size=64),
    Recipe(width=64, even_heads=False, image_size=64, width_multiple=8),
    Recipe(width=96, heads=6, image_size=64, patch_size=16, width_multiple=24),
    Recipe(width=256, heads=8, layers=4, image_size=128, patch_size=16, width_multiple=32),
)


def small(kind: type[Any], recipe: Recipe) -> Any:
    """A small configuration.

    Arguments:
        kind: a configuration class of transformers, whose defaults say what belongs together.

    Returns: an instance of the class.

    Raises:
        Exception: whatever the class says of the values, or that it has no defaults.
    """
    default = kind()
    widest = max((w for config in _parts(default) for w in _widths(config)), default=recipe.width)
    return _Shrinking(recipe, max(1.0, widest / recipe.width)).of(default)


def _parts(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if hasattr(value, "to_dict"):
            yield from _parts(value)


def _widths(config: Any) -> Iterator[int]:
    for name in _WIDEST:
        value = vars(config).get(name)
        if isinstance(value, int):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (v for v in value if isinstance(v, int))


class _Shrinking:
    """One configuration with all its parts: equal special tokens stay equal, all widths share a factor."""

    def __init__(self, recipe: Recipe, factor: float) -> None:
        self.recipe, self.factor = recipe, factor
        self.specials: dict[int, int] = {}

    def of(self, default: Any) -> Any:
        values = {k: v for k, v in vars(default).items() if not k.startswith("_")}
        old = max((v for k, v in values.items() if isinstance(v, int) and self._counts_layers(k)), default=0)
        kept = self._layers_kept(values, old)
        changed: dict[str, Any] = {}
        for name, value in values.items():
            if hasattr(value, "to_dict"):
                changed[name] = self.of(value)
                continue
            if name in ("id2label", "label2id", "stage_names", "torch_dtype", "dtype"):
                continue
            found = self._value(name, value, values, old, kept)
            if found != value:
                changed[name] = found
        changed |= self._unsaid(values, values | changed)
        self._join(changed)
        if getattr(default, "model_type", "") and "model_type" in values:
            changed.pop("model_type", None)
        return type(default)(**changed)

    @staticmethod
    def _join(parts: dict[str, Any]) -> None:
        """What is seen is handed over as wide as the words are; their positions have three parts, some by default."""
        seen, words = parts.get("vision_config"), parts.get("text_config")
        wide, heads = getattr(words, "hidden_size", None), getattr(words, "num_attention_heads", None)
        if not (hasattr(seen, "to_dict") and isinstance(wide, int) and isinstance(heads, int)):
            return
        if hasattr(seen, "out_hidden_size"):
            seen.out_hidden_size = wide
        elif hasattr(seen, "embed_dim") and hasattr(seen, "hidden_size"):
            seen.hidden_size = wide
        rope = getattr(words, "rope_parameters", None)
        if isinstance(rope, dict):
            turned = (getattr(words, "head_dim", None) or wide // heads) * rope.get("partial_rotary_factor", 1.0)
            rope.setdefault("mrope_section", _sections(int(turned) // 2))

    @staticmethod
    def _unsaid(values: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
        """What a class leaves to every published model to say, though its networks cannot be built without it."""
        heads = now.get("num_attention_heads")
        wide = now.get("hidden_size")
        found = {
            "head_dim": wide // heads if isinstance(wide, int) and isinstance(heads, int) and heads else None,
            "num_key_value_heads": heads,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "vocab_size": VOCABULARY,
            "prediction_length": 8,
        }
        if "vocab_size" in values and values["vocab_size"] is None:
            found |= {"pad_token_id": 1, "mask_token_id": 2}
        return {name: said for name, said in found.items() if name in values and values[name] is None and said}

    @staticmethod
    def _counts_layers(name: str) -> bool:
        return bool(_LAYERS.search(name)) and not _NO_LAYERS.search(name)

    def _layers_kept(self, values: dict[str, Any], old: int) -> list[int]:
        """Which layers stay: the first of each kind, where lists say of every layer of which kind it is."""
        count = min(old, self.recipe.layers)
        said = [v for v in values.values() if isinstance(v, (list, tuple)) and old > 2 and len(v) == old]
        kinds = list(zip(*said, strict=True)) if said else []
        first: list[int] = []
        for index, kind in enumerate(kinds):
            if not any(kinds[i] == kind for i in first):
                first.append(index)
        if not kinds or len(first) > 6:
            return list(range(count))
        others = [i for i in range(old) if i not in first]
        return sorted(first + others[: max(0, count - len(first))])

    def _value(self, name: str, value: Any, values: dict[str, Any], old: int, kept: list[int]) -> Any:
        scale = values.get("width_coefficient")
        if isinstance(scale, float) and "depth" not in name:  # one factor is applied to all widths, said or not
            if name == "width_coefficient":
                return _SCALE
            if name == "hidden_dim" and isinstance(value, int):
                return int(value * _SCALE / scale)
            if "channels" in name:
                return value
        if isinstance(value, bool) or value is None or isinstance(value, (str, float)):
            return value
        if isinstance(value, dict):
            return {k: self._value(k, v, values | value, old, kept) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._list(name, list(value), values, old, kept))
        return self._integer(name, value, values, kept) if isinstance(value, int) else value

    def _list(self, name: str, value: list[Any], values: dict[str, Any], old: int, kept: list[int]) -> list[Any]:
        if old > 2 and len(value) == old:
            return [value[i] for i in kept]
        if not value or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            return [self._list(name, v, values, 0, kept) if isinstance(v, list) else v for v in value]
        if name == "mrope_section":
            half = self._head_width("head_dim", values.get("head_dim") or 2 * sum(value), values) // 2
            return _sections(half) if len(value) == 3 else value
        if _SPECIAL.search(name):
            return [self._special(v) for v in value]
        if re.search(r"depths$|num_blocks$|_numb_of_layers|num_block_repeats|blocks_per_stage|layers_per_stage", name):
            return [1] * len(value)
        if _HEADS.search(name) or "heads" in name:
            least = min(v for v in value) or 1
            return [max(1, round(v / least)) for v in value] if self.recipe.even_heads else value
        if _PIXELS.search(name):
            return [self.recipe.image_size] * len(value)
        if _INDICES.search(name) and old and max(value) >= len(kept):
            return list(dict.fromkeys(min(len(kept) - 1, v * len(kept) // old) for v in value))
        if _WIDTH.search(name) and not _NO_WIDTH.search(name):
            return [self._width(v, least=8) for v in value]
        return value

    def _integer(self, name: str, value: int, values: dict[str, Any], kept: list[int]) -> int:
        recipe = self.recipe
        if _SPECIAL.search(name):
            return self._special(value)
        if _WORDS.search(name) and "type_vocab" not in name:
            return min(value, VOCABULARY)
        if _CODES.search(name):
            return min(value, 32)
        if self._counts_layers(name):
            return min(value, max(recipe.layers, len(kept)) if name in _MAIN_LAYERS else recipe.layers)
        if _HEAD_WIDTH.search(name):
            return self._head_width(name, value, values)
        if _HEADS.search(name):
            return self._heads(name, value, values)
        if name == "window_size" and "patch_size" in values and value > 16:
            return min(value, 4 * recipe.patch_size)  # in pixels, where others count patches
        capped = self._capped(name, value)
        if capped is not None:
            return capped
        if _WIDTH.search(name) and not _NO_WIDTH.search(name):
            return self._width(value)
        return value

    def _capped(self, name: str, value: int) -> int | None:
        """Counts that only need to be few."""
        recipe = self.recipe
        if _PIXELS.search(name):
            return recipe.image_size if value > recipe.image_size else value
        for pattern, most in _MOST:
            if re.search(pattern, name):
                return min(value, most)
        if re.search(r"^patch_size$|_patch_size$", name):
            return min(value, recipe.patch_size)
        if _EXPERTS.search(name):
            return min(value, 4)
        if _CHOSEN.search(name):
            return min(value, 2)
        if _POSITIONS.search(name):
            return min(value, 64)
        if _WINDOW.search(name):
            return min(value, 8)
        return None

    def _special(self, value: int) -> int:
        """Equal tokens stay equal; those beyond the plain words follow them."""
        if value < PLAIN_WORDS[1]:
            return value
        return self.specials.setdefault(value, VOCABULARY - 1 - len(self.specials) % (VOCABULARY - PLAIN_WORDS[1]))

    def _width(self, value: int, least: int | None = None) -> int:
        multiple = least or self.recipe.width_multiple
        if value <= multiple:
            return value
        return max(multiple, round(value / self.factor / multiple) * multiple)

    def _heads(self, name: str, value: int, values: dict[str, Any]) -> int:
        if value <= 1:
            return value
        of_keys = re.search(r"key_value|kv|groups|_v_|num_key_heads", name)
        asked = [
            v for k, v in values.items() if _HEADS.search(k) and isinstance(v, int) and not re.search("key_value|kv", k)
        ]
        if of_keys and asked and value < max(asked):
            return min(value, max(1, self.recipe.heads // 2))
        return min(value, self.recipe.heads)

    def _head_width(self, name: str, value: int, values: dict[str, Any]) -> int:
        """Such that all heads together keep their proportion to the widths."""
        if value <= 8:
            return value
        prefix = name.rsplit("head_dim", 1)[0].rstrip("_")
        counts = [
            k for k, v in values.items() if _HEADS.search(k) and isinstance(v, int) and not re.search("key_value|kv", k)
        ]
        counts.sort(key=lambda k: (not (prefix and k.startswith(prefix)), k != "num_attention_heads"))
        if not counts or "rope" in name or "nope" in name:
            return max(8, value // 8)
        old = values[counts[0]]
        found = old * value / self.factor / max(1, self._heads(counts[0], old, values))
        return int(min(64, max(8, round(found / 8) * 8)))


def _sections(half: int) -> list[int]:
    """The parts of a head's rotation: time, height and width."""
    return [half - 2 * (half // 3), half // 3, half // 3]


_MAIN_LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "depth",
    "encoder_layers",
    "decoder_layers",
    "layers",
)
_MOST = (
    (r"^n_group$|num_expert_group", 2),
    (r"^topk_group$", 1),
    (r"first_k_dense_replace|num_nextn|mtp_num", 1),
    (r"^(mamba_)?n_groups$|mamba_n_groups", 2),
    (r"num_frames", 4),
    (r"num_queries$|num_query_tokens|num_object_queries|^num_latents|n_latents$|num_denoising", 8),
    (r"num_conv_pos_embeddings", 16),
    (r"image_seq_length|num_image_tokens|mm_tokens_per_image", 16),
    (r"index_topk|train_num_points", 8),
    (r"mask_time_length|mask_feature_length", 2),
)
