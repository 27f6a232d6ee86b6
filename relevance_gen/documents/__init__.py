"""File selection and text extraction: PDF, HTML, Office, EPUB, e-mail and plain text."""
