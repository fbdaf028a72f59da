"""The command `llmk`: a module for each subcommand, imported when it is called."""
