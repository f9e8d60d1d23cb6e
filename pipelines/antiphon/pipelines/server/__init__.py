"""A server that speaks OpenAI's protocol: language models and indexes at a URL, and a page to watch them on.

Nobody imports it but the command that starts it.
"""

try:
    import fastapi  # noqa: F401
    import prometheus_client  # noqa: F401
    import python_multipart  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise ImportError("A server needs FastAPI and uvicorn; run: pip install 'antiphon[server]'") from error
