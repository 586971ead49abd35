"""`make docs` builds a site: every page and every reference, a warning is an error; and a real browser reads it."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import browser, looked_at
from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    home = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", home / "trees", "docs",
         home / "html"],
        cwd=ROOT, env=os.environ | {"LOWTIDE_CACHE_DIR": str(home)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return home / "html"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served; the search needs a server."""
    browser()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_documentation_builds_without_a_warning(site: Path) -> None:
    assert (site / "reference" / "command-line.html").is_file()


def test_the_search_finds_pages(address: str) -> None:
    seen = looked_at(f"{address}/search.html?q=rematerialisation")
    assert seen.errors == ()
    assert "guide/" in seen.dom.partition('id="search-results"')[2]


@pytest.mark.parametrize(
    "name", ["index", "guide/frameworks", pytest.param("guide/explain", marks=pytest.mark.breadth)]
)
def test_a_page_opens_without_an_error_on_a_phone(address: str, name: str) -> None:
    seen = looked_at(f"{address}/{name}.html", width=500)
    assert seen.errors == ()
    assert "<h1>" in seen.dom
