"""What plugins of HTTP APIs share: models of request bodies, complete tool calls, and pages for browsers."""
