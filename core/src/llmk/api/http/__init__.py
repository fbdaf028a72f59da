"""What plugins of HTTP APIs share: models of request bodies, and complete tool calls."""
