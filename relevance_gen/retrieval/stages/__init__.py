"""The parts of a score, one file each; `relevance_gen.retrieval.weighting` lists them in order."""
