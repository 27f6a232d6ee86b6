"""Decode a few tokens with all weight layouts enabled: ``python -m relevance_gen.llama.trial``.

If this build of llama.cpp crashes on this processor, this process dies, which `probe`, its parent,
detects.
"""

from __future__ import annotations

from pathlib import Path

from relevance_gen.llama.decoder import Decoder
from relevance_gen.llama.options import ModelOptions

TRIAL_MODEL = Path(__file__).parent / "trial.gguf"
"""A Llama model of zeros, Q8_0, wide enough for AMX tiles."""


def main() -> None:
    """Prefill two prompts, then decode a batch of two sequences.

    Exit with status 0 if both succeed.
    """
    options = ModelOptions(n_ctx=64, n_slots=2, n_gpu_layers=0, use_extra_bufts=True)
    with Decoder(TRIAL_MODEL, options) as decoder:
        prompt = decoder.tokenize("probe" * 8, 0)
        for slot in range(2):
            decoder.prefill([slot], [prompt], [0])
        decoder.decode([0, 1], [3, 4], [len(prompt)] * 2)


if __name__ == "__main__":
    main()
