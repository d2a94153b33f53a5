"""State dicts in files of many makers: safetensors, torch's own, and ours. Nothing in a file is run.

torch and safetensors are imported inside functions: whether a file is there is asked before torch is needed.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer4090 import checkpoint_file
from trainer4090.errors import CheckpointFileError, MachineError, Problem

if TYPE_CHECKING:
    import torch

TensorsByName = dict[str, "torch.Tensor"]
KEY = "model.weights"
WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys under which other trainers keep the state dict beside other things."""
_REMEDY = "save a state dict: torch.save(model.state_dict(), PATH)"


def require(path: Path) -> None:
    """Raise unless there is something to read at `path`.

    Raises:
        CheckpointFileError: there is nothing, or a folder that is no run.
    """
    if not path.exists():
        raise _unusable(f"{path} does not exist", "give a file of weights, or the folder of a run")
    if path.is_dir() and not checkpoint_file.files(path):
        raise _unusable(f"{path} holds no checkpoint file", "give a file of weights, or the folder of a run that saved")


def read(path: Path, notice: Callable[[str], None]) -> TensorsByName:
    """Tensors by name, on the CPU, as the file has them besides its wrapping. A run's folder stands for its best file.

    Raises:
        CheckpointFileError: the file is missing, damaged, or holds something else.
        MachineError: it is of safetensors, which is not installed.
    """
    require(path)
    if path.is_dir():
        path = _best(path)
    if path.with_name(f"{path.name}.sha256").exists():
        checkpoint_file.verified(path)
    digest, safetensors = _looked_at(path)
    tensors = _of_safetensors(path) if safetensors else _of_torch(path, notice)
    notice(f"{KEY}: {path}, {len(tensors)} tensors, sha256 {digest}")
    return tensors


def _best(folder: Path) -> Path:
    pointer = folder / checkpoint_file.FOLDER / "best.json"
    if not pointer.is_file():
        return checkpoint_file.files(folder)[0]
    return pointer.with_name(json.loads(pointer.read_text(encoding="utf-8"))["file"])


def _looked_at(path: Path) -> tuple[str, bool]:
    """sha256 of the content, and whether it is of safetensors: a length in 8 bytes, then JSON."""
    try:
        with path.open("rb") as file:
            head = file.read(9)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unusable(f"{path} cannot be read ({error.strerror})", "give a file that you may read") from error
    return digest, path.suffix == ".safetensors" or head[8:9] == b"{"


def _of_safetensors(path: Path) -> TensorsByName:
    try:
        import safetensors
        import safetensors.torch
    except ModuleNotFoundError as error:
        remedy = "pip install 'trainer4090[safetensors]'"
        raise MachineError(Problem(KEY, f"{path} needs safetensors, which is not installed", remedy)) from error
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise _unusable(f"{path} is no safetensors file ({_first_line(error)})", "give another file") from error


def _of_torch(path: Path, notice: Callable[[str], None]) -> TensorsByName:
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # torch says the same for garbage and for a pickled model, over many lines that advise to run the code in it.
        given = f"{path} is no state dict: damaged, or holding other objects than tensors, whose code is never run"
        raise _unusable(given, _REMEDY) from error
    except MemoryError:
        raise
    except Exception as error:  # bytes that are no pickle make the unpickler fail in many ways
        raise _unusable(f"{path} cannot be read ({_first_line(error)})", "give another file") from error
    return unwrapped(content, path, notice)


def unwrapped(content: Any, path: Path, notice: Callable[[str], None]) -> TensorsByName:
    """The state dict in what a file holds: bare, one of ours, or wrapped as other trainers do.

    Raises:
        CheckpointFileError: there is none.
    """
    import torch

    if isinstance(content, Mapping) and "executor" in content and "spec" in content:
        return _of_ours(content["executor"], notice)
    if isinstance(content, Mapping) and content:
        if all(isinstance(value, torch.Tensor) for value in content.values()):
            return {str(name): tensor for name, tensor in content.items()}
        for wrapper in WRAPPERS:
            if isinstance(content.get(wrapper), Mapping):
                notice(f"{KEY}: taken from {wrapper!r} in {path}, whose other entries are left out")
                return unwrapped(content[wrapper], path, notice)
    kind = f"entries {', '.join(map(str, list(content)[:3]))}" if isinstance(content, Mapping) else type(content)
    raise _unusable(f"{path} holds no state dict ({kind})", _REMEDY)


def _of_ours(executor: Mapping[str, Any], notice: Callable[[str], None]) -> TensorsByName:
    """The model of a checkpoint file of ours, with averaged parameters if it has them."""
    model, average = dict(executor["model"]), executor["average"]
    if average is None:
        return model
    notice(f"{KEY}: its averaged parameters are taken (ema.decay), as its evaluations did")
    # Tied parameters are averaged once, under one of their names; in the file they are one storage.
    averages = {model[name].data_ptr(): tensor for name, tensor in average.items()}
    return {name: averages.get(tensor.data_ptr(), tensor) for name, tensor in model.items()}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].replace(";", ",")[:160]


def _unusable(given: str, remedy: str) -> CheckpointFileError:
    return CheckpointFileError(Problem(KEY, given, remedy))
