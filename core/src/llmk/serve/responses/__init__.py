"""OpenAI's Responses API: requests as chat bodies, output as its events, and what is stored between requests."""
