"""What a client may send, field by field. Every field is honoured, or refused with its name."""
