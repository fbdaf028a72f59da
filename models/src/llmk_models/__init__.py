"""Model families for llmk: native decoders, and a backend for decoders of transformers. Importing it imports no
torch."""
