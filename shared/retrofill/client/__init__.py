"""What any front end does: ask by an event and await the reply, follow topics, read the state. Prints nothing."""
