"""Convert between text and tokens: prompts, chat templates, parameters, detokenization, stop strings, tool calls."""
