"""Twenty visitors who move sliders all the time; `python explorer_load.py MINUTES` prints the server's memory."""

import asyncio
import json
import random
import re
import sys
import time
from pathlib import Path

from explorer_session import PATIENCE, running_server
from tornado.httpclient import AsyncHTTPClient
from tornado.websocket import websocket_connect

VISITORS = 20
#: Seconds between two moves of one visitor.
_PAUSE = 1.0
TOKEN = re.compile('"token":"([^"]+)"')


async def heard(socket) -> str | None:
    """The next text that came; None when the server has closed, empty for numbers."""
    message = await socket.read_message()
    return "" if isinstance(message, bytes) else message


async def connected(address: str, token: str):
    """The websocket of a page, as soon as the server is ready for it."""
    socket = await websocket_connect(address.replace("http", "ws") + "ws", subprotocols=["bokeh", token])
    while "ACK" not in await heard(socket):
        pass
    return socket


async def left(socket) -> None:
    """Close it, and wait until it is closed."""
    socket.close()
    while await socket.read_message() is not None:
        pass


async def send(socket, kind: str, content: dict) -> None:
    """One message of bokeh's protocol."""
    for fragment in ({"msgid": "1", "msgtype": kind}, {}, content):
        await socket.write_message(json.dumps(fragment))


def model_of(part, label: str) -> str | None:
    """The id of the text box with a label, in the JSON of a document."""
    if isinstance(part, dict):
        attributes = part.get("attributes")
        if isinstance(attributes, dict) and label in (attributes.get("title"), attributes.get("label")):
            return part["id"]
        part = list(part.values())
    found = (model_of(one, label) for one in part) if isinstance(part, list) else ()
    return next((one for one in found if one is not None), None)


async def visitor(address: str, number: int, end: float, door: asyncio.Lock) -> int:
    """Open a page, one visitor after the other, and move C_W until `end`; the messages that came back."""
    query = "?activation=" + ("tanh", "relu", "gelu", "linear")[number % 4]
    async with door:
        page = await AsyncHTTPClient().fetch(address + query, connect_timeout=PATIENCE, request_timeout=PATIENCE)
        socket = await connected(address, TOKEN.search(page.body.decode()).group(1))
        await send(socket, "PULL-DOC-REQ", {})
        text = ""
        while '"roots"' not in text:
            text = await heard(socket)
    box, rng, answers = model_of(json.loads(text), "Weight variance C_W"), random.Random(number), 0

    async def move() -> None:
        while time.monotonic() < end:
            change = {
                "kind": "ModelChanged",
                "model": {"id": box},
                "attr": "value",
                "new": f"{rng.uniform(0.1, 4):.3f}",
            }
            await send(socket, "PATCH-DOC", {"events": [change]})
            await asyncio.sleep(_PAUSE)
        socket.close()

    moving = asyncio.create_task(move())
    while await socket.read_message() is not None:
        answers += 1
    await moving
    return answers


def load(minutes: float) -> tuple[list[float], list[int]]:
    """Resident memory of the server in GB, every five seconds, and the messages to every visitor."""
    with running_server(warm_up=True) as (address, process):

        async def measured():
            end, door = time.monotonic() + 60.0 * minutes, asyncio.Lock()
            visits = asyncio.gather(*(visitor(address, number, end, door) for number in range(VISITORS)))
            sizes = []
            while not visits.done():
                await asyncio.wait([visits], timeout=5.0)
                status = Path(f"/proc/{process.pid}/status").read_text()
                sizes.append(int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1e6)
            return sizes, await visits

        return asyncio.run(measured())


if __name__ == "__main__":
    sizes, answers = load(float(sys.argv[1]))
    print("GB:", " ".join(f"{size:.2f}" for size in sizes), "messages to a visitor:", min(answers), "to", max(answers))
