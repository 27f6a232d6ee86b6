"""Search on several machines: run on a node of a Ray cluster, or start a local cluster."""

import tempfile

from relevance_gen.cluster import ClusterIndex

CHUNKS = [
    {"text": "Cats purr when they are content.", "metadata": {"page": 1}},
    {"text": "Dogs bark at strangers.", "metadata": {"page": 2}},
    {"text": "Cows chew the cud.", "metadata": {"page": 3}},
]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with ClusterIndex(CHUNKS, location=folder, n_shards=2) as index:
            index.add(["A cat and a dog can be friends."])
            print(index.search("Why do cats purr?"))
        with ClusterIndex.load(folder) as index:
            print(index.stats().num_shards, "shards of", len(index), "chunks")
            for response in index.search(["Who barks?", "Who chews?"], top_n=1):
                print(response.results[0].chunk_txt)


if __name__ == "__main__":
    main()
