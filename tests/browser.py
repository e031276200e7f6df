"""A real browser for the tests that read a page as its reader sees it."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needed = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; install the package chromium")


def dom(url: str, profile: Path, *flags: str, size: str = "1200,900") -> str:
    """As the browser has it once all is loaded. Hosts other than this one do not exist for it."""
    assert CHROMIUM
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"--window-size={size}"),
        *("--disable-background-networking", "--hide-scrollbars"),
        *("--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", f"--user-data-dir={profile}", *flags, url),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout
