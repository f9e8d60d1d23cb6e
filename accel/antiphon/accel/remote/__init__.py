"""Language models on servers that speak OpenAI's protocol: requests, streams, errors."""
