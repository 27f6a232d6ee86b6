"""Search and generation over HTTP; ``python -m relevance_gen.serve`` starts the server.

``routes`` is the table of all paths. The package ``http`` receives a request, a module of
``adapters`` reads it, ``services`` execute it, and the same adapter writes the response.
``processes`` starts and stops the server.
"""
