"""Continue texts: ``python examples/generate.py model.gguf``, or without a file with the embedded model."""

import sys

from relevance_gen import GenerationRequest, Runner

with Runner(sys.argv[1] if len(sys.argv) > 1 else None) as runner:
    # One request, as it comes.
    for piece in runner.stream(GenerationRequest("Once upon a time", max_tokens=40)):
        print(piece.text, end="", flush=True)
    print("\n")

    # Many at once: they share every step of the model, and each is done as soon as it can be.
    prompts = ["The sea was", "Nobody in the house", "It is a truth"]
    futures = [
        runner.submit(GenerationRequest(prompt, max_tokens=30, num_samples=2)) for prompt in prompts
    ]
    for prompt, future in zip(prompts, futures, strict=True):
        for completion in future.result().responses:
            print(prompt + completion.text + "…", end="\n\n")

    counters = runner.counters()
    print(f"{counters.generated_tokens} tokens in {counters.decode_steps} steps of the model")
