"""llama.cpp, and how a model of it is loaded."""
