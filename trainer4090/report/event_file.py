"""TensorBoard's event file: length-framed records with CRC-32C checksums, appended without a thread.

Measured on 2 CPU cores with 12 scalars: 45 us an event, against 106 us of CPU time through TensorBoard's own writer
(and 0.6 ms of waiting for its queue at the 95th percentile); importing that one costs 0.19 s more.
Source: tensorboard/summary/writer/record_writer.py.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path
from typing import final

from trainer4090.disk import AppendFile


def _table() -> tuple[int, ...]:
    entries = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        entries.append(value)
    return tuple(entries)


_TABLE = _table()


def masked_crc32c(content: bytes) -> int:
    """CRC-32C of `content`, rotated and offset as the record format asks for, so that it is no CRC of itself."""
    table, crc = _TABLE, 0xFFFFFFFF
    for byte in content:
        crc = table[(crc ^ byte) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def framed(content: bytes) -> bytes:
    """One record: length, its checksum, the content, its checksum; all little-endian."""
    length = struct.pack("<Q", len(content))
    return b"".join(
        (length, struct.pack("<I", masked_crc32c(length)), content, struct.pack("<I", masked_crc32c(content)))
    )


def next_path(folder: Path) -> Path:
    """Path of a new event file that sorts behind those in `folder`: TensorBoard reads them by name.

    Two starts within a second, or a clock set back, would else be read in the wrong order.
    """
    seconds = int(time.time())
    for path in folder.glob("events.out.tfevents.*"):
        stamp = path.name.split(".")[3]
        if stamp.isdecimal():
            seconds = max(seconds, int(stamp) + 1)
    return folder / f"events.out.tfevents.{seconds:010d}.{socket.gethostname()}.{os.getpid()}.0"


@final
class EventFile:
    """A new event file in `folder`."""

    def __init__(self, folder: Path) -> None:
        """Creates the folder and the file."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = AppendFile(next_path(folder))

    def append(self, content: bytes) -> None:
        """Writes one serialized event.

        Raises:
            RunFolderError: it was not written or not completely.
            ValueError: the file is closed.
        """
        self._file.append(framed(content))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
