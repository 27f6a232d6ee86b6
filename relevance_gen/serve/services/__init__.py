"""Services: search and generation with bounded resources.

They raise the library's errors and do not use HTTP.
"""
