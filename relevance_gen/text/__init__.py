"""Process text: scripts, folding, tokens, stems, stop words, sentences, chunks, token counts."""
