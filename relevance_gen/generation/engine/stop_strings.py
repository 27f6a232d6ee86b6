"""Turn token pieces into text that can be shown: whole characters, and nothing that may belong to a stop string."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence


class StopStrings:
    """Find the first occurrence of any of many non-empty strings, character by character (Aho–Corasick).

    A state is the longest suffix of the text so far that begins some stop string, so `depth` of it is how much text
    must be held back. The cost of a character does not grow with the number of stop strings.

    Source: A. V. Aho, M. J. Corasick, "Efficient string matching", CACM 18(6), 1975.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.matched = [0]
        self._fallback = [0]
        for stop in stops:
            state = 0
            for position, character in enumerate(stop):
                if character not in self._next[state]:
                    self._next[state][character] = len(self._next)
                    self._next.append({})
                    self.depth.append(position + 1)
                    self.matched.append(0)
                    self._fallback.append(0)
                state = self._next[state][character]
            self.matched[state] = len(stop)
        # Every state points, breadth first, to the longest proper suffix of it that is a state too.
        frontier = deque(self._next[0].values())
        while frontier:
            state = frontier.popleft()
            self.matched[state] = self.matched[state] or self.matched[self._fallback[state]]
            for character, child in self._next[state].items():
                self._fallback[child] = self.advance(self._fallback[state], character)
                frontier.append(child)

    def advance(self, state: int, character: str) -> int:
        """Return the state after `character`; 0 is the start.

        ``matched[state]`` is the length of the longest stop string that ends here, 0 if none does.
        """
        while state and character not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(character, 0)


NO_STOPS = StopStrings(())


class TextAssembler:
    """Release one sample's text piece by piece.

    The concatenation of what `push` and `flush` return is the text up to the first stop string to be completed,
    wherever the borders between pieces fall; after it nothing is released, and it is `stop_string` that string, which is
    empty before. Bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self, stops: StopStrings = NO_STOPS) -> None:
        self.stop_string = ""
        self._stops = stops
        self._state = 0
        self._held = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, piece: bytes, *, may_stop: bool = True) -> str:
        """Take the bytes of one token and return the text they release; only where it `may_stop` stop strings count."""
        return self._release(self._decoder.decode(piece), may_stop)

    def flush(self, *, may_stop: bool = True) -> str:
        """Return what was held back, now that nothing follows."""
        released = self._release(self._decoder.decode(b"", final=True), may_stop)
        if not self.stop_string:
            released, self._held = released + self._held, ""
        return released

    def _release(self, text: str, may_stop: bool) -> str:
        if self.stop_string:
            return ""
        stops, state = self._stops, self._state
        seen = self._held + text
        for end, character in enumerate(text, len(self._held) + 1):
            state = stops.advance(state, character)
            if stops.matched[state] and may_stop:
                start = end - stops.matched[state]
                self.stop_string, self._held = seen[start:end], ""
                return seen[:start]
        self._state = state
        free = len(seen) - stops.depth[state]
        self._held = seen[free:]
        return seen[:free]
