"""What happened, kept from events and commands: trainer records, timeline, picture, utilisation. Decides nothing."""
