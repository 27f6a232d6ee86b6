"""Both halves over HTTP; ``python -m relevance_gen.serve`` starts it.

``routes`` is the table of all paths. A request comes in at ``edge``, which alone speaks HTTP; a module of ``dialects``
reads it; ``work`` does what it asks for; and the same dialect words the answer. ``processes`` starts and ends all this.
"""
