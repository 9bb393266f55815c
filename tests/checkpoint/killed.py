"""Saves in a child that is killed in the middle, again and again; run as a program, because it forks.

    python -m tests.checkpoint.killed DIRECTORY TRIALS

Prints how many of the saves were cut off in the middle.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from tests.checkpoint.making import check_whole, save, spec
from windlass.checkpoint import list_checkpoints

KEYS = (spec("w", 4_000),)
OPTIONS = {"shard_bytes": 4000, "keep": 2}


def save_forever(path: str, step: int) -> None:
    while True:
        step += 1
        save(path, step, KEYS, **OPTIONS)
        save(path, step, KEYS, name="best", **OPTIONS)


def main(path: str, trials: int) -> None:
    rng = random.Random(5)
    save(path, 1, KEYS, **OPTIONS)
    save(path, 1, KEYS, name="best", **OPTIONS)
    step, best, cut = 1, 1, 0
    for _ in range(trials):
        child = os.fork()
        if child == 0:
            save_forever(path, step)
        time.sleep(rng.uniform(0.01, 0.12))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        cut += any((Path(path) / one.name / "unfinished").exists() for one in list_checkpoints(path))
        assert check_whole(path, KEYS) >= step
        assert check_whole(f"{path}/best", KEYS) >= best
        best = check_whole(f"{path}/best", KEYS)
        for one in list_checkpoints(path):
            if one.manifest is not None:
                check_whole(one.path, KEYS)
        step = max(one.manifest.step for one in list_checkpoints(path) if one.manifest)
    save(path, step + 1, KEYS, **OPTIONS)
    for folder in Path(path).iterdir():
        left = sorted(file.name for file in folder.iterdir() if file.suffix not in (".json", ".safetensors"))
        assert not left, f"left in {folder.name}: {left}"
        assert check_whole(folder, KEYS)
    print(f"{cut} of {trials} were cut off")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
