"""A small typed interface to llama.cpp: decoder, embedder, cross-encoder, tokenizer and options.

This package is the only importer of llama_cpp. A model must be used by the thread that created it:
a second thread with an OpenMP pool makes decoding five times slower. Only `Decoder.interrupt` may
be called from other threads.
"""
