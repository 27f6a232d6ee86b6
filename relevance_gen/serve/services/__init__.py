"""What the server does: search and generation, in bounded threads. It knows no HTTP and raises the library's errors."""
