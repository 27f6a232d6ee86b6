"""Small models for the tests, and how they are made."""
