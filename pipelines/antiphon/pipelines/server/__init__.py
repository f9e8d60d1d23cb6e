"""An HTTP server with OpenAI's protocol: language models, indexes and a web page."""
