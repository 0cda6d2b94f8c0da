"""A module whose import takes longer than a completion is given before others overtake it."""

import os
import time

time.sleep(0.5)
PID = os.getpid()
