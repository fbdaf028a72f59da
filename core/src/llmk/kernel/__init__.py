"""The microkernel: finds plugins, checks them before it imports them, and registers what they provide."""
