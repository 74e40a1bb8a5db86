"""A server of MCP's own package, on standard input and output."""

from __future__ import annotations

import io
import os
import time
from typing import Any

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult
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
def fail(how: str) -> str:
    """Fail in a way."""
    if how == "die":
        os._exit(3)
    if how == "hang":
        time.sleep(60)
    raise ToolError("no ink")


@server.tool()
def measure() -> CallToolResult:
    """Say what the paper measures, and nothing in words."""
    meta: dict[str, Any] = {"done": True, "reward": "none"}
    return CallToolResult(content=[], structured_content={"width": 3}, _meta=meta)


if __name__ == "__main__":
    server.run("stdio")
