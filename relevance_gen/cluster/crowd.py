"""Score the many small segments of a host as one: what a segment costs, however small it is, is then paid once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from relevance_gen.index.builder import merge
from relevance_gen.index.segment import Segment, Statistics
from relevance_gen.retrieval.scorer import SegmentScorer
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.types import WeightingName

_FEW: Final = 4
"""So many segments stay as they are."""
_SMALL: Final = 1 << 19
"""Most postings of a segment that is merged, some 4 MiB of text: a larger one costs more by what it holds."""
_MOST: Final = 1 << 23
"""Most postings of all that are merged: half a second of a thread, and 100 MiB beside the segments."""
_POSTINGS_OF_A_CALL: Final = 1 << 10
"""About so many postings are merged in the time that one more segment takes of a question."""


class Crowd:
    """The segments of a host, of which small ones are merged when asking them apart has cost as much.

    A thread merges them, so that no question waits for it: until it is done they are asked apart.
    """

    def __init__(self, weighting: WeightingName) -> None:
        self._weighting = weighting_named(weighting)
        self._lock = threading.RLock()  # held for a moment
        self._is_merging = False
        self.forget()

    def forget(self) -> None:
        """Let go of all segments."""
        with self._lock:  # a question that is between two of these would miss chunks
            self._members: dict[int, Segment] = {}
            self._merged: list[SegmentScorer] = []
            self._n_asked = 0

    def fewer(self, scorers: Sequence[SegmentScorer]) -> Sequence[SegmentScorer]:
        """Return scorers of the same chunks, fewer where many of a host's segments, in one state of all, are small."""
        if len(scorers) <= _FEW:
            return scorers
        statistics = scorers[0].statistics
        with self._lock:
            if not self._members.keys() <= {id(one.segment) for one in scorers}:
                self.forget()  # some were changed
            others = [one for one in scorers if id(one.segment) not in self._members]
            small = [one.segment for one in others if one.segment.postings.chunk.size <= _SMALL]
            if len(small) > _FEW and not self._is_merging:
                self._n_asked += len(small)
                every = [*(one.segment for one in self._merged), *small]
                n_postings = sum(one.postings.chunk.size for one in every)
                if n_postings <= min(_MOST, self._n_asked * _POSTINGS_OF_A_CALL):
                    args = self._members, small, every, statistics
                    threading.Thread(
                        target=self._merge, args=args, name="merge-segments", daemon=True
                    ).start()
                    self._n_asked, self._is_merging = 0, True
            for one in self._merged:
                if one.statistics is not statistics:
                    self._merged = [
                        SegmentScorer(one.segment, self._weighting, statistics, one.words_found)
                    ]
            return [*self._merged, *others]

    def _merge(
        self,
        members: dict[int, Segment],
        small: list[Segment],
        every: list[Segment],
        statistics: Statistics,
    ) -> None:
        """Merge `every` segment, and count the `small` ones among the members, unless all were let go of meanwhile."""
        merged: list[SegmentScorer] = []
        try:
            merged = [SegmentScorer(merge(every), self._weighting, statistics)]
        finally:
            with self._lock:
                self._is_merging = False
                if merged and self._members is members:
                    members |= {id(one): one for one in small}
                    self._merged = merged
