"""An HTTP server with OpenAI's protocol: language models, indexes and a web page.

Imported by the command ``antiphon serve`` only.
"""

try:
    import fastapi  # noqa: F401
    import prometheus_client  # noqa: F401
    import python_multipart  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise ImportError("A server needs FastAPI and uvicorn; run: pip install 'antiphon[server]'") from error
