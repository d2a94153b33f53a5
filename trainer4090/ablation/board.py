"""The lines in TensorBoard: a scalar a column with the row's number as its step, the table, and the picture."""

# pyright: reportAttributeAccessIssue=false
# Protobuf makes the classes of its modules at import, where no checker sees them.

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from trainer4090.ablation.line import Line

SCALARS = (
    "items_per_s",
    "speed_up",
    "peak_allocated_gib",
    "peak_reserved_gib",
    "gpu_utilization",
    "mfu",
    "compile_s",
)
"""Fields of a line that are written, where they are known."""


def write(folder: Path, lines: Sequence[Line], markdown: str, picture: bytes, size: tuple[int, int]) -> None:
    """Replaces what TensorBoard shows of an ablation.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    from trainer4090.report.event_file import EventFile
    from trainer4090.report.tensorboard import markdown as text

    shutil.rmtree(folder, ignore_errors=True)
    file = EventFile(folder)
    try:
        file.append(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        image = Summary.Image(width=size[0], height=size[1], colorspace=3, encoded_image_string=picture)
        shown = [text("ablate/table", markdown), Summary.Value(tag="ablate/chart", image=image)]
        file.append(Event(wall_time=time.time(), step=0, summary=Summary(value=shown)).SerializeToString())
        for step, line in enumerate(lines):
            known = {name: value for name in SCALARS if (value := getattr(line, name)) is not None}
            if line.parity is not None and line.parity.difference is not None:
                known["largest_loss_difference"] = line.parity.difference
            values = [Summary.Value(tag=f"ablate/{name}", simple_value=value) for name, value in known.items()]
            file.append(Event(wall_time=time.time(), step=step, summary=Summary(value=values)).SerializeToString())
    finally:
        file.close()
