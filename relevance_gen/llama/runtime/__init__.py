"""The llama.cpp library in this process: loading, devices, threads, abort handling."""
