"""A real browser without a window, where one is installed: Chromium by its command line."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ERROR = re.compile(r"CONSOLE[^\]]*\] \"(?P<text>.*?)\", source", re.DOTALL)


@dataclass(frozen=True)
class Seen:
    """A page as the browser had it in the end.

    Arguments:
        dom: serialised.
        errors: what the console said: errors of scripts, and files that did not load.
    """

    dom: str
    errors: tuple[str, ...]


def browser() -> str:
    """The browser's path; the test is skipped where there is none."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium is installed")
    return found


def looked_at(page: str, *, width: int = 1280, height: int = 900, screenshot: Path | None = None) -> Seen:
    """Opens a page until its scripts have come to rest.

    Arguments:
        page: an address, or the text of a page.
        screenshot: of a file to write as well.
    """
    with tempfile.TemporaryDirectory() as home:
        address = page
        if page.lstrip().startswith("<"):
            Path(home, "page.html").write_text(page, encoding="utf-8")
            address = f"file://{home}/page.html"
        common = [
            browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-extensions",
            "--no-first-run", "--disable-background-networking", f"--user-data-dir={home}/profile",
            f"--window-size={width},{height}", "--virtual-time-budget=4000", "--enable-logging=stderr",
        ]  # fmt: skip
        done = subprocess.run([*common, "--dump-dom", address], capture_output=True, text=True, check=True, timeout=120)
        if screenshot is not None:
            subprocess.run(
                [*common, f"--screenshot={screenshot}", address], capture_output=True, check=True, timeout=120
            )
    return Seen(done.stdout, tuple(found["text"] for found in _ERROR.finditer(done.stderr)))
