"""Tools: Python functions and MCP servers that agents call during an episode."""
