"""Where the CUDA variants can run: importing this registers them there, and nowhere else.

To know that is to have built them, once for each text of theirs: what is registered runs.
"""

from __future__ import annotations

import importlib

from ling_runtime.ops.cuda.build import obstacle

if not obstacle():
    importlib.import_module("ling_runtime.ops.cuda.stream")
