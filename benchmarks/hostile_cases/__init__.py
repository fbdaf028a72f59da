"""What a hostile client may send, and who watches what others see of it."""
