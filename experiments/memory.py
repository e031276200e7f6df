"""Did a child end because memory ran out? What its log and the kernel say about it.

The surprise: an exit by KILL proves nothing. The kernel kills like that when memory is short, and so does anybody with
a terminal; the difference is the kernel's own count of out-of-memory kills, compared with its count at the start.
"""

from __future__ import annotations

import re
from pathlib import Path

STATISTICS = Path("/proc/vmstat")
EXHAUSTED = re.compile(
    r"CUDA out of memory"
    r"|CUDA error: out of memory"
    r"|torch(\.cuda)?\.OutOfMemoryError"
    r"|DefaultCPUAllocator: (can't allocate|not enough) memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED"
    r"|cudaErrorMemoryAllocation"
    r"|Not enough memory\. Please try to increase --mem-fraction-static"
    r"|std::bad_alloc"
    r"|^MemoryError\b"
)
"""PyTorch's allocators on CPU and GPU, CUDA and cuBLAS, SGLang's pools, C++, Python."""


def kernel_kills() -> int:
    """Processes that this machine's kernel has killed for want of memory since it booted."""
    counts = dict(line.split() for line in STATISTICS.read_text().splitlines())
    return int(counts.get("oom_kill", 0))


def exhausted(log: str) -> str | None:
    """The last line of a log that says memory ran out."""
    found = [line.strip() for line in log.splitlines() if EXHAUSTED.search(line)]
    return found[-1] if found else None


def killed_by_kernel(returncode: int, kills_before: int) -> str | None:
    """The kernel's part in the end of a child, `kills_before` counted when it started; None if it had none.

    Any code but 0 counts: the one killed may have been a worker below the child, or below a shell that says 137.
    """
    count = kernel_kills() - kills_before
    return f"the kernel's count of out-of-memory kills rose by {count}" if returncode and count > 0 else None
