"""What no training can start without: torch and ignite."""

import ignite.engine
import ignite.handlers
import torch

assert ignite.engine and ignite.handlers and torch
print("step 1/", flush=True)
