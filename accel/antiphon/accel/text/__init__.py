"""Messages, parameters and pieces of text around the tokens. Knows no model."""
