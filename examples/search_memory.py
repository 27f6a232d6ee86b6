"""Memory for an agent: turns of conversations as chunks, filtered by speaker and date."""

from __future__ import annotations

from datetime import date

from relevance_gen import ChunkIndex

TURNS = [
    ("2026-03-02", "Ana", "I adopted a cat from the shelter, her name is Mirko."),
    ("2026-03-02", "Ben", "I moved to Trieste and started rowing."),
    ("2026-05-19", "Ana", "Mirko had kittens last night, four of them!"),
    ("2026-05-20", "Ben", "My rowing club won the regatta."),
]

memory = ChunkIndex([])


def remember(day: str, who: str, text: str) -> None:
    """Keep a turn; its speaker and day are words of it, too."""
    memory.add(
        [
            {
                "text": text,
                "title": f"{who}, {date.fromisoformat(day):%d %B %Y}",
                "metadata": {"day": day, "who": who},
            }
        ]
    )


for turn in TURNS:
    remember(*turn)

said_by_ana = memory.search("What is the name of the cat?", top_n=1, where={"who": "Ana"})
print(said_by_ana[0].metadata["day"], said_by_ana[0].chunk_txt)

since_may = memory.search(
    "How is the rowing going?", top_n=1, where=lambda turn: turn["day"] >= "2026-05-01"
)
print(since_may[0].metadata["day"], since_may[0].chunk_txt)

memory.remove(where={"who": "Ben"})  # delete all turns of one user
print(len(memory.search("rowing", where={"who": "Ana"})), "turns of Ana's about rowing")
