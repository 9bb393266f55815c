"""For every test: threads that wait for each other sleep, and Ctrl-C is on.

OpenMP's threads spin by default. Where two processes want the same cores, as in most tests, each spinning thread burns
the time of the one it waits for, and a step of torch takes three times as long. Set before anything loads torch.

A shell starts what it runs in the background with SIGINT ignored, and whatever the tests start would inherit that.
"""

from __future__ import annotations

import os
import signal

from hypothesis import settings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("windlass", deadline=None)  # a busy machine is no failure
settings.load_profile("windlass")
