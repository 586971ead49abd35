"""Text inside a page or a picture: nothing in it means anything to a browser or a terminal."""

from __future__ import annotations

import html
import json
from typing import Any

from lowtide.printable import printable


def escape(text: str) -> str:
    """Text as an element's content, or as an attribute's in quotes."""
    return html.escape(printable(text))


def script_data(data: dict[str, Any]) -> str:
    """JSON that is safe inside a `<script>` element; its lists of texts are made printable."""
    shown = {key: _shown(item) for key, item in data.items()}
    return json.dumps(shown, separators=(",", ":")).replace("<", "\\u003c")


def _shown(item: Any) -> Any:
    return [printable(i) if isinstance(i, str) else i for i in item] if isinstance(item, list) else item
