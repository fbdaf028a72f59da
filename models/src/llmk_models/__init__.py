"""Model families for llmk: native decoders, and whatever transformers knows. Importing it needs no torch."""
