"""Request and response bodies: content codings, JSON size estimates, parsing within a memory limit."""
