"""A server of MCP's own package, on standard input and output."""

from __future__ import annotations

import io
import os
import time

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent
from PIL import Image as Images

server = MCPServer("drawing")
drawn: list[int] = []


@server.tool()
def square(size: int) -> Image:
    """Draw a square."""
    drawn.append(size)
    file = io.BytesIO()
    Images.new("RGB", (size, size)).save(file, "PNG")
    return Image(data=file.getvalue(), format="png")


@server.tool()
def count() -> str:
    """Count what was drawn."""
    return f"{len(drawn)} drawn, PAPER={os.environ.get('PAPER')}"


@server.tool()
def measure(words: str) -> CallToolResult:
    """Measure the paper: what is said in words, and what is said besides."""
    said = [TextContent(text=words)] if words else []
    meta = {"done": True, "reward": 3}
    return CallToolResult(content=said, structured_content={"a": 1}, _meta=meta)


@server.tool()
def fail(how: str) -> str:
    """Fail in a way."""
    if how == "die":
        os._exit(3)
    if how == "hang":
        time.sleep(60)
    raise ToolError("no ink")


if __name__ == "__main__":
    server.run("stdio")
