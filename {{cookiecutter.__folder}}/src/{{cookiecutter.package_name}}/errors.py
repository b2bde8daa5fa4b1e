"""The one exception that a user is meant to read."""

from __future__ import annotations


class UsageError(Exception):
    """What was asked for cannot work; the message is one sentence that names the fix.

    ``exit_code`` is 2 for bad usage or configuration, 1 for a machine that is not ready. Where several processes of a
    node find the same, the one with ``local_rank`` says it.
    """

    def __init__(self, sentence: str, exit_code: int = 2, local_rank: int = 0) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
        self.local_rank = local_rank


class SampleError(UsageError):
    """A UsageError that came while samples were read: other processes read others, so the one that has it says it."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, exit_code=1)
