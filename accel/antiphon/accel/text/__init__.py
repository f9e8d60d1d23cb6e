"""Between text and tokens: prompts and chat templates, parameters, detokenization, stop strings, tool calls."""
