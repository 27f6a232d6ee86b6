"""What a word is: scripts, folding, terms, stems, function words; and how texts are cut to be read."""
