"""llama.cpp behind a small typed surface: a decoder, its vocabulary, its options. The only importer of llama_cpp.

Whatever computes must be used from one thread, the one that made it: a second one with an OpenMP pool slows decoding
fivefold. Only `Decoder.interrupt` may be called from elsewhere.
"""
