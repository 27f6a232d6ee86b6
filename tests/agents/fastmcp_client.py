"""A session of the fastmcp client; arguments: interpreter, folder, path of the library."""

import asyncio
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport


async def main() -> None:
    python, folder, path = sys.argv[1:]
    transport = StdioTransport(
        python, ["-m", "relevance_gen", "mcp", folder], env={"PYTHONPATH": path, "HOME": folder}
    )
    async with Client(transport) as client:
        print(*[tool.name for tool in await client.list_tools()])  # noqa: T201
        for arguments in (
            {"question": "which method does a request begin with?"},
            {"question": "x", "topn": 3},
        ):
            result = await client.call_tool("search", arguments, raise_on_error=False)
            print(f"---\n{result.content[0].text}")  # noqa: T201


asyncio.run(main())
