"""A server of the Model Context Protocol: search, answers and documents as tools and resources for agents.

Imported by the commands ``antiphon mcp`` and ``antiphon serve`` only. The SDK itself takes a second to import, so
`http` imports it when the first client connects.
"""

from importlib.util import find_spec

if find_spec("mcp") is None:
    raise ImportError("A server for agents needs the MCP SDK; run: pip install 'antiphon[mcp]'")
