"""The parts of the server that concern HTTP: connections, bodies, access and error responses."""
