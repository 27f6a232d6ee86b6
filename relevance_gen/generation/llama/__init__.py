"""llama.cpp behind a small typed surface: a model, its vocabulary, a context of slots. The only importer of llama_cpp.

All of it must be used from one thread, the one that made it: a second one with an OpenMP pool slows decoding fivefold.
Only `Model.interrupt` may be called from elsewhere.
"""

from relevance_gen.generation.llama.model import Model

__all__ = ["Model"]
