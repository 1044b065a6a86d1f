"""The files of a run: written all or nothing, with a digest by which a damaged one is known."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: names of the files in a run's folder
RESULT, CHECKPOINT, LOG, PROGRESS, LOCK = "result.json", "checkpoint.bin", "log.txt", "progress", "lock"

CHECKPOINT_KEYS = {"model", "reset_by_load", "actions", "log", "settings", "random"}


def write_bytes(path: Path, content: bytes) -> None:
    """
    Write a file so that a process that dies in between leaves the old one.

    :param path: the file
    :param content: what it is to hold
    """
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """
    Write a JSON file, all or nothing, with a digest of itself.

    :param path: the file
    :param document: what it is to hold
    """
    write_bytes(path, (json.dumps({"sha256": digest(document), **document}, sort_keys=True) + "\n").encode())


def read_document(path: Path) -> dict[str, Any]:
    """
    Read a file of :func:`write_document`.

    :param path: the file
    :return: what it holds; a ValueError names a file that is not as it was written
    """
    try:
        document = json.loads(path.read_bytes())
        sound = document.pop("sha256") == digest(document)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is corrupt ({type(error).__name__}: {error})") from error
    if not sound:
        raise ValueError(f"{path} is corrupt (it does not match its own digest)")
    return dict(document)


def write_checkpoint(path: Path, checkpoint: Mapping[str, Any]) -> None:
    """
    Write a checkpoint, all or nothing, with a digest of itself.

    :param path: the file
    :param checkpoint: what it is to hold: ``CHECKPOINT_KEYS``
    """
    content = pickle.dumps(dict(checkpoint))
    write_bytes(path, hashlib.sha256(content).digest() + content)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """
    Read a checkpoint.

    :param path: the file
    :return: what it holds; a ValueError names a file that is not as it was written
    """
    content = path.read_bytes()
    if content[:32] != hashlib.sha256(content[32:]).digest():
        raise ValueError(f"{path} is corrupt (it does not match its own digest)")
    try:
        checkpoint: dict[str, Any] = pickle.loads(content[32:])
        missing = CHECKPOINT_KEYS - checkpoint.keys()
    except Exception as error:  # unpickling another version's classes may fail in any way
        raise ValueError(f"{path} cannot be read ({type(error).__name__}: {error})") from error
    if missing:
        raise ValueError(f"{path} cannot be used (it lacks {', '.join(sorted(missing))})")
    return checkpoint


def rename_aside(path: Path, why: str) -> str:
    """
    Rename a file to the first free ``name.why-N``.

    :param path: the file
    :param why: the reason, in a word
    :return: the new name
    """
    number = 1
    while (aside := path.with_name(f"{path.name}.{why}-{number}")).exists():
        number += 1
    os.replace(path, aside)
    return aside.name


def digest(content: Any) -> str:
    """
    Digest of something that JSON can hold.

    :param content: what JSON can hold
    :return: its SHA-256, in hexadecimal digits
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
