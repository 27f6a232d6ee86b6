"""How long the grammars of strangers may keep everybody waiting: their masks are made in the thread that decodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from relevance_gen.generation.sequence import Sequence
from relevance_gen.quota import Quota

STEP_S: Final = 0.02
"""The processor's time for them in a step."""
_SHARE: Final = 0.2
"""Of all time, where others run beside them."""


class MaskTime:
    """What is left of the time for strangers' grammars."""

    def __init__(self) -> None:
        self._quota = Quota(share=STEP_S, regained_per_s=_SHARE)

    def charge(self, seconds: float) -> None:
        """Take note that so much was used."""
        self._quota.charge(seconds)

    def late(self, of_strangers: Mapping[int, Sequence], n_running: int) -> set[int]:
        """Return the slots that have to wait for another step: those of the samples that have most tokens already.

        Args:
            of_strangers: slot to sequence, of strangers alone.
            n_running: sequences of everybody.
        """
        needed_s = {
            slot: min(one.constraint.token_s, STEP_S)
            for slot, one in of_strangers.items()
            if one.constraint is not None
        }
        left_s = STEP_S - (self._quota.held if len(needed_s) < n_running else 0.0)
        late = set()
        for slot in sorted(needed_s, key=lambda slot: len(of_strangers[slot].tokens)):
            if needed_s[slot] > left_s:
                late.add(slot)
            else:
                left_s -= needed_s[slot]
        return late
