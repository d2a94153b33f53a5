"""TensorBoard: one event file a start, all scalars of a log point in one event, hparams in the same file."""

# pyright: reportAttributeAccessIssue=false
# Protobuf makes the classes of its modules at import, where no checker sees them.

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from google.protobuf.struct_pb2 import Value
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT, DT_STRING
from tensorboard.plugins.custom_scalar.layout_pb2 import Category, Chart, Layout, MultilineChartContent
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

from trainer4090.errors import RunFolderError
from trainer4090.report.event_file import EventFile
from trainer4090.report.exhibit import Exhibit, Passage
from trainer4090.report.hyperparameters import Scalar, flat

CHARTS = {
    "loss": {
        "loss": ("train/loss", "eval/loss"),
        "accuracy": ("eval/accuracy",),
        "gradient norm": ("train/grad_norm",),
    },
    "speed": {
        "items per second": ("speed/items_per_s",),
        "step time in ms": ("speed/step_time_ms",),
        "waiting for data, fraction": ("speed/data_wait_fraction",),
        "model FLOPs utilisation": ("speed/mfu",),
    },
    "memory": {"GiB": ("memory/allocated_gib", "memory/reserved_gib"), "retries": ("memory/alloc_retries",)},
    "gpu": {
        "utilisation in %": ("gpu/utilization",),
        "power in W": ("gpu/power_w",),
        "temperature in degrees C": ("gpu/temperature_c",),
        "clock in MHz": ("gpu/sm_clock_mhz",),
    },
}
"""Category -> chart -> tags, as the tab Custom Scalars shows them."""


def layout(eval_tags: Sequence[str]) -> Summary.Value:
    """The charts of `CHARTS`, and one for each tag of an evaluation that is in none of them."""
    shown = {tag for charts in CHARTS.values() for tags in charts.values() for tag in tags}
    others = {tag.removeprefix("eval/"): (tag,) for tag in eval_tags if tag not in shown}
    categories = []
    for title, charts in (CHARTS | ({"metrics": others} if others else {})).items():
        lines = {name: MultilineChartContent(tag=[f"^{tag}$" for tag in tags]) for name, tags in charts.items()}
        categories.append(Category(title=title, chart=[Chart(title=name, multiline=lines[name]) for name in lines]))
    tensor = _text_tensor(Layout(category=categories).SerializeToString(), TensorShapeProto())
    return Summary.Value(tag="custom_scalars__config__", tensor=tensor, metadata=_metadata("custom_scalars"))


def text(tag: str, content: str) -> Summary.Value:
    """`content` shown as it is: indented by four, Markdown sets it as code."""
    return markdown(tag, "".join(f"    {row}\n" for row in content.splitlines()))


def markdown(tag: str, content: str) -> Summary.Value:
    """`content` set as Markdown, tables included."""
    tensor = _text_tensor(content.encode(), TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]))
    return Summary.Value(tag=tag, tensor=tensor, metadata=_metadata("text"))


def _exhibited(exhibit: Exhibit) -> Summary.Value:
    if isinstance(exhibit, Passage):
        return text(exhibit.tag, exhibit.text)
    image = Summary.Image(
        height=exhibit.height, width=exhibit.width, colorspace=3, encoded_image_string=exhibit.png
    )  # 3: red, green, blue
    return Summary.Value(tag=exhibit.tag, image=image)


def session_start(hyperparameters: Mapping[str, Scalar]) -> Summary.Value:
    """The hyperparameters.

    Without an `Experiment` beside them, TensorBoard itself unites the columns of all runs below its folder; with one
    it would show the columns of the first run only.
    """
    info = SessionStartInfo(start_time_secs=time.time())
    for key, value in hyperparameters.items():
        info.hparams[key].CopyFrom(_value(value))
    return _hparams("_hparams_/session_start_info", HParamsPluginData(session_start_info=info))


def session_end() -> Summary.Value:
    """Says that the run has finished."""
    info = SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=time.time())
    return _hparams("_hparams_/session_end_info", HParamsPluginData(session_end_info=info))


def _value(value: Scalar) -> Value:
    if isinstance(value, bool):
        return Value(bool_value=value)
    return Value(string_value=value) if isinstance(value, str) else Value(number_value=value)


def _metadata(plugin: str, content: bytes = b"") -> SummaryMetadata:
    return SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin, content=content))


def _text_tensor(content: bytes, shape: TensorShapeProto) -> TensorProto:
    return TensorProto(dtype=DT_STRING, string_val=[content], tensor_shape=shape)


def _hparams(tag: str, content: HParamsPluginData) -> Summary.Value:
    empty = TensorProto(dtype=DT_FLOAT, tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=0)]))
    return Summary.Value(tag=tag, tensor=empty, metadata=_metadata("hparams", content.SerializeToString()))


@final
class Board:
    """Writer of the folder `tb/`."""

    def __init__(
        self,
        folder: Path,
        start_step: int,
        hyperparameters: Mapping[str, Any],
        texts: Mapping[str, str],
        eval_tags: Sequence[str],
    ) -> None:
        """Starts an event file and writes what is known before the first update.

        Its session start makes TensorBoard forget what earlier starts wrote after update `start_step`, so that every
        tag keeps unique, increasing steps. At the first start it changes nothing, but only the second one counts.
        """
        first_step = start_step + 1 if start_step > 0 else 0
        values = [layout(eval_tags), session_start(flat(hyperparameters)), *(text(tag, texts[tag]) for tag in texts)]
        self._last_steps: dict[str, int] = {}
        self._file = EventFile(folder)
        try:
            self._append(Event(file_version="brain.Event:2"))
            self._append(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))
            self._append(Event(step=first_step, summary=Summary(value=values)))
        except RunFolderError:
            self._file.close()
            raise

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends one event with all values (fp32 in TensorBoard; metrics.jsonl keeps the digits)."""
        event = Event(step=step)
        for tag, value in values.items():
            event.summary.value.add(tag=tag, simple_value=value)  # in place: protobuf copies a message that it is given
        self._append(event)
        self._last_steps.update(dict.fromkeys(values, step))

    def show(self, step: int, exhibits: Sequence[Exhibit]) -> None:
        """Appends one event with pictures and texts."""
        self._append(Event(step=step, summary=Summary(value=[_exhibited(exhibit) for exhibit in exhibits])))

    def close(self, final: Mapping[str, float]) -> None:
        """Ends the session with `final` as its metrics, unless it is empty, and closes the file.

        TensorBoard shows the last value of each tag beside the hyperparameters, so only the tags that have no value
        at the last step are written: a second one at the same step would double the point.
        """
        try:
            if final:
                last_step = max(self._last_steps.values(), default=None)
                late = {tag: final[tag] for tag in final if self._last_steps.get(tag) != last_step}
                if last_step is not None and late:
                    self.write(last_step, late)
                self._append(Event(step=last_step or 0, summary=Summary(value=[session_end()])))
        finally:
            self._file.close()

    def _append(self, event: Event) -> None:
        event.wall_time = time.time()
        self._file.append(event.SerializeToString())
