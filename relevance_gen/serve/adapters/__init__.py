"""The forms of request and answer that clients speak, a module for each; they know neither HTTP nor how work is done.

A dialect has a function for each kind of request. It takes the parsed JSON, checks it, and returns what `work` is to do
together with what turns the outcome into the client's form: a function, or for a stream an object like `own.Events`. It
raises an `InvalidRequestError` where a field is wrong, or asks for what is not done; chunks are checked where they are
searched. A function like `own.error` words errors. Where two dialects share a path, a field of the body tells which is
spoken. A new dialect is a module here and rows in the table of routes.
"""
