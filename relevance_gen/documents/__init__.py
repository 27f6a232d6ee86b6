"""Files as text: any encoding, and PDF, HTML and Office, within limits of time and size."""
