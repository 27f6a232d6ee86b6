"""The HTTP APIs that the server implements: one module or package for each.

An adapter has one function for each kind of request. The function takes the parsed JSON, checks it,
and returns the task for a service together with the writer of the response: a function from the
result to the response, or for a stream an object such as `own.GenerationEvents`. It raises
`InvalidRequestError` if a field is wrong or not supported; services check the chunks. A function
such as `own.error` writes errors. If two adapters share a path, a field of the body selects one.
Adapters depend neither on HTTP nor on how services work. A new adapter is a module in this package
and rows in the table of routes.
"""
