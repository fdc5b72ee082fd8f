"""Reading and trimming TensorBoard event files.

A run that resumes at a checkpoint repeats the steps after it. TensorBoard
hides the first version of them when told to (`purge_step`), other readers do
not; so they are taken out of the files as well, and every step is on disk once
(K37). A file is a sequence of records: length, its checksum, data, its
checksum. Records are copied whole, checksums included.
"""

import os
import pathlib
import struct
from collections.abc import Iterator

from tensorboardX.proto import event_pb2


def records(
    path: str | os.PathLike[str],
) -> Iterator[tuple[bytes, event_pb2.Event]]:
  """Raw bytes and event of every whole record; a torn last one is left out."""
  with open(path, 'rb') as file:
    while len(head := file.read(12)) == 12:
      (length,) = struct.unpack('<Q', head[:8])
      body = file.read(length + 4)
      if len(body) < length + 4:
        return
      yield head + body, event_pb2.Event.FromString(body[:length])


def scalars(
    folder: str | os.PathLike[str],
) -> dict[str, list[tuple[int, float]]]:
  """Tag -> (step, value) of every point in the folder, in file order."""
  points: dict[str, list[tuple[int, float]]] = {}
  for path in event_paths(folder):
    for _, event in records(path):
      for value in event.summary.value:
        if value.HasField('simple_value'):
          point = (int(event.step), float(value.simple_value))
          points.setdefault(value.tag, []).append(point)
  return points


def event_paths(folder: str | os.PathLike[str]) -> list[pathlib.Path]:
  """The event files of a folder, oldest first."""
  found = pathlib.Path(folder).glob('events.out.tfevents.*')
  return sorted(found, key=lambda p: (p.stat().st_mtime_ns, p.name))


def drop_after(folder: str | os.PathLike[str], step: int) -> None:
  """Takes the events of later steps out of every file of a folder."""
  for path in event_paths(folder):
    kept = [raw for raw, event in records(path) if event.step <= step]
    partial = path.with_name('partial.' + path.name)
    partial.write_bytes(b''.join(kept))
    stat = path.stat()
    os.utime(partial, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    os.replace(partial, path)
