"""Continue text and conversations with a GGUF model, many requests and samples at once.

Importing this loads no model library; making a `Runner` does.
"""

from relevance_gen.generation.api import chat, generate
from relevance_gen.generation.counters import Counters
from relevance_gen.generation.queue.request import RequestContext
from relevance_gen.generation.runner import Runner
from relevance_gen.generation.stream import TextPiece, TextStream

__all__ = ["Counters", "RequestContext", "Runner", "TextPiece", "TextStream", "chat", "generate"]
