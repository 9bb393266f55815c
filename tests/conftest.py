"""For every test: threads that wait for each other sleep.

OpenMP's spin by default. Where two processes want the same cores, as in most tests, each spinning thread burns the time
of the one it waits for, and a step of torch takes three times as long. Set before anything loads torch.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
