"""Diagnosis of the task, of the time of a step, and of the network: docs/diagnosis.md."""

from __future__ import annotations

from typing import Any

from ...runtime import Command

TIMING: dict[str, dict[str, Any]] = {"--steps": {"type": int, "default": 50, "help": "measured steps, after 5 more"}}
NETWORK: dict[str, dict[str, Any]] = {"--nnodes": {"type": int, "required": True, "help": "number of nodes"}}

COMMANDS = {
    "check": Command(
        "Check one step of your task: loss, gradients, random numbers, metrics.",
        "packs.diagnosis.check:check",
        in_every_process=True,
    ),
    "timing": Command("Time the parts of a step.", "packs.diagnosis.timing:timing", TIMING, in_every_process=True),
    "all-reduce": Command("Time all-reduces.", "packs.diagnosis.timing:all_reduce", in_every_process=True),
    "network": Command("Check that nodes can connect; start it on each.", "packs.diagnosis.network:network", NETWORK),
}
