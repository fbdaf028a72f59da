"""Commands that plugins provide: as they are called, and as the help of ``llmk`` lists them."""
