"""The user's code shipped to the drivers: an archive, named by the hash of its content, in a store that all of them see."""
