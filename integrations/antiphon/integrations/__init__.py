"""Other people's words for the same things: adapters for frameworks, which nothing else imports."""
