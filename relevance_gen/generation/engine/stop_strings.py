"""Assemble token bytes into text.

Only complete characters are text, and no text that may belong to a stop string is released.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence


class StopStrings:
    """Find the first occurrence of any of many non-empty strings by character (Aho–Corasick).

    A state is the longest suffix of the text so far that is a prefix of a stop string.
    ``depth[state]`` is its length, and so the number of characters to hold back. The cost of a
    character does not grow with the number of stop strings.

    Attributes:
        depth: length of each state in characters.
        matched: for each state, the length of the longest stop string that ends in it; 0 if none
            does.

    Source: A. V. Aho, M. J. Corasick, "Efficient string matching", CACM 18(6), 1975.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.matched = [0]
        self._fallback = [0]
        for stop in stops:
            state = 0
            for depth, character in enumerate(stop, 1):
                if character not in self._next[state]:
                    self._next[state][character] = len(self._next)
                    self._next.append({})
                    self.depth.append(depth)
                    self.matched.append(0)
                    self._fallback.append(0)
                state = self._next[state][character]
            self.matched[state] = len(stop)
        # Breadth first, link each state to its longest proper suffix that is a state too.
        frontier = deque(self._next[0].values())
        while frontier:
            state = frontier.popleft()
            self.matched[state] = self.matched[state] or self.matched[self._fallback[state]]
            for character, child in self._next[state].items():
                self._fallback[child] = self.advance(self._fallback[state], character)
                frontier.append(child)

    def advance(self, state: int, character: str) -> int:
        """Return the state that follows `state` after `character`; 0 is the initial state."""
        while state and character not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(character, 0)


NO_STOPS = StopStrings(())


class TextAssembler:
    """Assembles the text of one sample from the bytes of its tokens.

    The results of `push` and `flush`, concatenated, are the text up to the first complete stop
    string, regardless of how the bytes are split into tokens. After a stop string no text is
    released. Invalid UTF-8 becomes U+FFFD.

    Attributes:
        stop_string: the stop string that ended the text; empty if none has.
    """

    def __init__(self, stops: StopStrings = NO_STOPS) -> None:
        self.stop_string = ""
        self._stops = stops
        self._state = 0
        self._unreleased_text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, piece: bytes, *, may_stop: bool = True) -> str:
        """Append the bytes of a token; return the text to release.

        Stop strings are ignored unless `may_stop`.
        """
        return self._release(self._decoder.decode(piece), may_stop)

    def flush(self, *, may_stop: bool = True) -> str:
        """Return the text that was held back as a possible part of a stop string or character.

        The bytes of an incomplete character become U+FFFD. Stop strings are ignored unless
        `may_stop`. The caller must not push another token afterwards.
        """
        released = self._release(self._decoder.decode(b"", final=True), may_stop)
        if not self.stop_string:
            released, self._unreleased_text = released + self._unreleased_text, ""
        return released

    def _release(self, text: str, may_stop: bool) -> str:
        if self.stop_string:
            return ""
        stops, state = self._stops, self._state
        unreleased = self._unreleased_text + text
        for end, character in enumerate(text, len(self._unreleased_text) + 1):
            state = stops.advance(state, character)
            n_matched = stops.matched[state]
            if n_matched and may_stop:
                start = end - n_matched
                self.stop_string, self._unreleased_text = unreleased[start:end], ""
                return unreleased[:start]
        self._state = state
        n_released = len(unreleased) - stops.depth[state]
        self._unreleased_text = unreleased[n_released:]
        return unreleased[:n_released]
