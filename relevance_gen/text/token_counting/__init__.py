"""Count the tokens of texts. Only this package imports tiktoken and gigatoken."""

from relevance_gen.text.token_counting.counter import (
    PIECE_CHARS,
    Backend,
    TokenCounter,
    counter_of_saved,
    token_counter,
)
from relevance_gen.text.token_counting.encodings import Encoding

__all__ = [
    "PIECE_CHARS",
    "Backend",
    "Encoding",
    "TokenCounter",
    "counter_of_saved",
    "token_counter",
]
