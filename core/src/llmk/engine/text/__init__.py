"""From a request to token ids, and from tokens back to text."""
