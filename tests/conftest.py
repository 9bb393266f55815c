"""For every test: threads that wait for each other sleep, nobody tells of compiling, and Ctrl-C is on.

OpenMP's threads spin by default. Where two processes want the same cores, as in most tests, each spinning thread burns
the time of the one it waits for, and a step of torch takes three times as long. Set before anything loads torch.

What is printed is compared, and on a new install a line more would say that kernels are compiled: it is not said.

A shell starts what it runs in the background with SIGINT ignored, and whatever the tests start would inherit that.
"""

from __future__ import annotations

import os
import signal

from hypothesis import settings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["WINDLASS_SILENT_COMPILING"] = "1"
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("windlass", deadline=None)  # a busy machine is no failure
settings.load_profile("windlass")
