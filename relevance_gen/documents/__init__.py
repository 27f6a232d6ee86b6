"""Files as text: any encoding, and PDF, HTML, Office, EPUB and e-mail, within limits of time and size."""
