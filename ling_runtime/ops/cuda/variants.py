"""Where the CUDA variants can run: importing this registers them there, and nowhere else.

The build itself waits until a kernel is first launched.
"""

from __future__ import annotations

import importlib

from ling_runtime.ops.cuda.build import usable

if usable():
    importlib.import_module("ling_runtime.ops.cuda.stream")
