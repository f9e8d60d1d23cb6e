"""A server of the Model Context Protocol: search, answers and documents for agents."""

from importlib.util import find_spec

if find_spec("mcp") is None:
    raise ImportError("A server for agents needs the MCP SDK; run: pip install 'antiphon[mcp]'")
