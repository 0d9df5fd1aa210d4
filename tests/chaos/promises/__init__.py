"""The promises, one family a file: each is a generator over a history that yields what breaks it."""
