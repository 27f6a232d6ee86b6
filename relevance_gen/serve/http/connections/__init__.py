"""Connections: accept, serve and close them."""
