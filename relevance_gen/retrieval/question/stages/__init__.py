"""The parts of a score, one file each; `relevance_gen.retrieval.question.weighting` lists them in order."""
