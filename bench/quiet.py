"""How busy others keep the machine while all contenders sleep: numbers from a machine that is shared mislead."""

from __future__ import annotations

import time
from pathlib import Path

SAMPLE_SECONDS = 0.25
NOISY_CORES = 0.1


def busy_cores(seconds: float = SAMPLE_SECONDS) -> float:
    """Cores' worth of work that somebody did while we slept so long; 0.0 where the system does not tell."""
    before = _busy_ticks()
    time.sleep(seconds)
    after = _busy_ticks()
    return (after[0] - before[0]) / max(1, after[1] - before[1]) * before[2]


def _busy_ticks() -> tuple[int, int, int]:
    """Ticks at work and ticks in all, over all cores, and how many cores there are."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0, 0, 1
    lines = stat.read_text().splitlines()
    user, nice, system, idle, iowait, *rest = map(int, lines[0].split()[1:9])
    at_work = user + nice + system + sum(rest)
    return at_work, at_work + idle + iowait, sum(line.startswith("cpu") for line in lines) - 1
