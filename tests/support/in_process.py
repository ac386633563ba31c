"""Clients of an application in the same process, without a network."""

import asyncio

import httpx


def client_of(app, base="http://app", **transport):
    """An asynchronous client of an application. Its requests have no deadline."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, **transport), base_url=base, timeout=None)


def sent(app, method, path, *, base="http://app", **request):
    """Send one request in an event loop of its own; returns the response."""

    async def run():
        async with client_of(app, base) as client:
            return await client.request(method, path, **request)

    return asyncio.run(run())
