"""One Orbax composite per step: networks, optimizers and every host cursor."""

from collections.abc import Callable, Collection, Iterator, Mapping
import contextlib
import json
import os
from typing import Any, TypeVar

import jax
from absl import logging
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers as policies

from rl_tpu.checkpointing import contents
from rl_tpu.config import schema
from rl_tpu.learner import fingerprint as fingerprint_lib
from rl_tpu.sharding import hosts as hosts_lib
from rl_tpu.types import stops

T = TypeVar('T')

# Beside the host's parts: digests of each part of the arrays, and one of all of
# it. By these damage is noticed.
_ARRAYS, _INTEGRITY = 'arrays', 'integrity'
# Ranks a step that was not evaluated below every success.
_UNJUDGED = -1.0


class DamagedError(ValueError):
  """A step that cannot be read, or is not what was saved."""


class CheckpointStore:
  """Saves and restores a run's state under `<workdir>/checkpoints`.

  The folder may be on gs://, where Orbax writes to it as on a disk.
  """

  def __init__(
      self,
      folder: str,
      config: schema.CheckpointConfig,
      hosts: hosts_lib.Hosts = hosts_lib.ALONE,
      *,
      cleans: bool = False,
  ):
    """Opens the folder; creates it when something is saved.

    Args:
      folder: one for all processes of the run.
      config: what is kept.
      hosts: the processes; each saves its own shards.
      cleans: removes what saves that did not end have left; for the run itself,
        since they may be another program's saves under way.
    """
    self._hosts = hosts
    self._saving: int | None = None
    self._folder = folder if '://' in folder else os.path.abspath(folder)
    hosts.of_lead(self._mend_metrics)
    keep = policies.AnyPreservationPolicy([
        policies.LatestN(n=max(config.keep, 1)),
        policies.BestN(
            get_metric_fn=lambda metrics: metrics['success'],
            n=1,
        ),
    ])
    self._manager = ocp.CheckpointManager(
        self._folder,
        options=ocp.CheckpointManagerOptions(
            preservation_policy=keep,
            best_fn=lambda metrics: metrics['success'],
            enable_async_checkpointing=True,
            cleanup_tmp_directories=cleans,
        ),
    )

  def _mend_metrics(self) -> None:
    """Makes unjudged what has lost its figure; the manager reads them all."""
    for path in epath.Path(self._folder).glob('*/metrics/metrics'):
      try:
        found = json.loads(path.read_text())
        is_sound = found == _metrics(found['success'])
      except (ValueError, KeyError, TypeError):
        is_sound = False
      if not is_sound:
        logging.warning(
            '%s is damaged: its step counts as one that was not evaluated', path
        )
        path.write_text(json.dumps(_metrics(_UNJUDGED)))

  @property
  def folder(self) -> str:
    """Where the steps are."""
    return self._folder

  def step(self, which: str = 'latest') -> int | None:
    """The step of 'latest' or 'best' (by held-out success); None if none.

    A step without its commit record is passed over (K28).
    """
    steps = self.steps()
    if which == 'best':
      judged = {s: self._manager.metrics(s) for s in steps}
      judged = {s: m['success'] for s, m in judged.items() if m}
      if judged:
        # Of equals the later one: it has seen more.
        return max(judged, key=lambda s: (judged[s], s))
    return max(steps) if steps else None

  def steps(self) -> list[int]:
    """Every whole step."""
    return sorted(s for s in self._manager.all_steps() if self._is_whole(s))

  def ignored_steps(self) -> list[int]:
    """Steps on disk that are not whole and are never restored."""
    return [s for s in self._manager.all_steps() if not self._is_whole(s)]

  def save(
      self,
      step: int,
      state: Mapping[str, Any],
      host: Mapping[str, Any],
      *,
      success: float | None = None,
  ) -> None:
    """Starts saving one composite; waits for an earlier save first.

    Args:
      step: number of the update.
      state: arrays, by part.
      host: JSON values, by part.
      success: held-out success; None where it was not evaluated.

    Raises:
      ValueError: a part of the host state is missing (O7).
      WriteFailed: the disk or bucket did not take this save, or the one before.
    """
    missing = [name for name in contents.HOST if name not in host]
    if missing:
      raise ValueError(f'checkpoint: the host state lacks {missing}.')
    self.wait()
    is_there, is_whole = self._hosts.of_lead(
        lambda: (step in self._manager.all_steps(), self._is_whole(step))
    )
    if is_whole:
      return
    bits = fingerprint_lib.fingerprints(state)
    digests = {
        name: {'layout': fingerprint_lib.layout(part), 'bits': bits[name]}
        for name, part in state.items()
    }
    host = {**host, _ARRAYS: digests}
    self._saving = step
    with self._names_failure():
      if is_there:
        self._manager.delete(step)
      self._manager.save(
          step,
          args=ocp.args.Composite(
              state=ocp.args.PyTreeSave(dict(state)),
              host=ocp.args.JsonSave(
                  {**host, _INTEGRITY: contents.digest(host)}
              ),
          ),
          metrics=_metrics(_UNJUDGED if success is None else success),
      )

  @contextlib.contextmanager
  def _names_failure(self) -> Iterator[None]:
    """Makes of what a disk or bucket raises a line that names the step."""
    try:
      yield
    except jax.errors.JaxRuntimeError:
      raise  # Of the devices, or of another process that is lost.
    except Exception as error:
      # Paths come first in it, and the reason last.
      text = ' '.join(str(error).split())[-300:]
      raise stops.WriteFailed(
          f'checkpoint {self._saving} could not be saved in {self._folder}:'
          f' {text}.'
      ) from error

  def restore(
      self,
      step: int,
      like: Mapping[str, Any],
      *,
      without: Collection[str] = (),
  ) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads a step into the shapes and shardings of `like` (K29).

    Args:
      step: a whole step.
      like: the arrays that are wanted, by part; others stay on disk.
      without: parts that may be missing.

    Returns:
      Arrays and host values by part, without those that are missing.

    Raises:
      DamagedError: the step cannot be read, at any process, or what was read
        is not what was saved.
      ValueError: a part is missing, or is there in other shapes (O7).
    """
    host = self._attempt(
        step, lambda: self._read(step, 'host', ocp.args.JsonRestore())
    )
    digest = host.pop(_INTEGRITY, None)
    self._compare(step, 'host', contents.digest(host), digest)
    config_hash = host.get('config_hash')
    if config_hash is not None and 'config' in host:
      found = contents.digest(host['config'])
      self._compare(step, 'config', found, config_hash)
    saved = host.pop(_ARRAYS)
    fitting = {
        name: part
        for name, part in like.items()
        if name in saved
        and saved[name]['layout'] == fingerprint_lib.layout(part)
    }
    contents.check_whole(
        f'checkpoint {step} in {self._folder}',
        [n for n in (*contents.HOST, *like) if n not in (*host, *fitting)],
        allowed=without,
    )
    state = self._attempt(step, lambda: self._read_arrays(step, fitting))
    for name, bits in fingerprint_lib.fingerprints(state).items():
      self._compare(step, name, bits, saved[name]['bits'])
    return state, host

  def _attempt(self, step: int, read: Callable[[], T]) -> T:
    """What is read, where all processes can read it."""
    found, problem = None, ''
    try:
      found = read()
    except Exception as error:  # pylint: disable=broad-except
      # Whatever a changed byte makes of the readers of four formats.
      problem = ' '.join(str(error).split())[:300] or type(error).__name__
    if any(problems := self._hosts.exchange(problem)):
      raise DamagedError(
          f'checkpoint {step} in {self._folder} cannot be read:'
          f' {next(filter(None, problems))}'
      )
    return found

  def _compare(self, step: int, part: str, found: str, saved: str | None):
    if found != saved:
      raise DamagedError(
          f'checkpoint {step} in {self._folder} is damaged: its {part} part is'
          ' not what was saved.'
      )

  def _read(self, step: int, item: str, args: Any) -> Any:
    args = ocp.args.Composite(**{item: args})
    return self._manager.restore(step, args=args)[item]

  def _read_arrays(
      self, step: int, like: Mapping[str, Any]
  ) -> dict[str, Any]:
    if not like:
      return {}
    like = jax.tree.map(ocp.utils.to_shape_dtype_struct, dict(like))
    args = ocp.args.PyTreeRestore(
        item=like,
        restore_args=ocp.checkpoint_utils.construct_restore_args(like),
        partial_restore=True,
    )
    found = self._read(step, 'state', args)
    # What is not on disk comes back as it was asked for.
    for path, leaf in jax.tree_util.tree_leaves_with_path(found):
      if not isinstance(leaf, jax.Array):
        name = jax.tree_util.keystr(path, simple=True, separator='/')
        raise ValueError(f'it has no {name}')
    return found

  def restore_latest(
      self, like: Mapping[str, Any], *, without: Collection[str] = ()
  ) -> tuple[int, dict[str, Any], dict[str, Any], list[str]] | None:
    """Reads the latest step that is whole and undamaged; deletes later ones.

    Args:
      like: as for `restore`.
      without: parts that may be missing.

    Returns:
      The step, its two parts, and what is wrong with those that were passed
      over; None where nothing was saved.

    Raises:
      ValueError: there are steps, and none of them can be read; or a part is
        missing.
    """
    problems = []
    for step in self._hosts.of_lead(lambda: self.steps()[::-1]):
      try:
        state, host = self.restore(step, like, without=without)
      except DamagedError as error:
        problems.append((step, str(error)))
        continue
      for damaged, _ in problems:
        # It would be taken for saved when the run comes to this step again.
        self._manager.delete(damaged)
      return step, state, host, [text for _, text in problems]
    if problems:
      raise ValueError(
          f'{problems[0][1]} No other checkpoint can be read either; start in'
          ' another --workdir.'
      )
    return None

  def wait(self) -> None:
    """Returns when the save under way is whole on disk.

    Raises:
      WriteFailed: it will not be.
    """
    with self._names_failure():
      self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits for the save under way and closes the manager.

    Raises:
      WriteFailed: the save has failed.
    """
    try:
      self.wait()
    finally:
      self._manager.close()

  def _is_whole(self, step: int) -> bool:
    folder = epath.Path(self._folder) / str(step)
    return all(
        (folder / name).exists()
        for name in ('_CHECKPOINT_METADATA', 'state', 'host')
    )


def _metrics(success: float) -> dict[str, Any]:
  return {'success': success, 'digest': contents.digest({'success': success})}
