"""A server of the Model Context Protocol: search, answers and documents as tools and resources for agents.

Imported by the commands ``antiphon mcp`` and ``antiphon serve`` only.
"""

try:
    import mcp  # noqa: F401
except ImportError as error:
    raise ImportError("A server for agents needs the MCP SDK; run: pip install 'antiphon[mcp]'") from error
