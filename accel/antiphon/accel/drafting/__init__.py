"""Who guesses what comes next, what a guess promises, and which rows of it are worth verifying. Knows no model."""
