"""Process text: scripts, folding, tokenization, stems, stop words, sentences, chunking and token counts."""
