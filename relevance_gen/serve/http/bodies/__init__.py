"""Request and response bodies: content codings, JSON size estimates, parsing in limited memory."""
