"""Builds a training run, takes it up where it was, and closes it."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from rl_tpu.assembly import bearing
from rl_tpu.assembly import critic_figures
from rl_tpu.assembly import critic_start
from rl_tpu.assembly import figures
from rl_tpu.assembly import gates
from rl_tpu.assembly import gathering
from rl_tpu.assembly import holding
from rl_tpu.assembly import incidents
from rl_tpu.assembly import parts
from rl_tpu.assembly import policy as policy_lib
from rl_tpu.assembly import profiling
from rl_tpu.assembly import resuming
from rl_tpu.assembly import run as run_lib
from rl_tpu.assembly import serving as serving_lib
from rl_tpu.assembly import taking_up
from rl_tpu.assembly import warm_up
from rl_tpu.assembly import watchdog as watchdog_lib
from rl_tpu.checkpointing import contents
from rl_tpu.checkpointing import lease_files
from rl_tpu.checkpointing import mirror as mirror_lib
from rl_tpu.checkpointing import store as store_lib
from rl_tpu.config import loading
from rl_tpu.config import schema
from rl_tpu.config import validation
from rl_tpu.learner import fingerprint
from rl_tpu.learner import update as update_lib
from rl_tpu.metrics import writers
from rl_tpu.models import value_head
from rl_tpu.sharding import compile_count
from rl_tpu.sharding import controller
from rl_tpu.sharding import hosts as hosts_lib


@contextlib.contextmanager
def open_run(
    config: schema.ExperimentConfig,
    workdir: str,
    *,
    override_config: bool = False,
    allow_partial: Sequence[str] = (),
    interrupt: Callable[[], bool] = lambda: False,
) -> Iterator[run_lib.TrainingRun]:
  """Builds a run, restores it where it was, and closes it whatever happens.

  Args:
    config: the experiment.
    workdir: a used one is taken up.
    override_config: a used one may have been started with other settings.
    allow_partial: parts that its checkpoint may lack.
    interrupt: True gives up the rollouts that are being gathered.

  Raises:
    ValueError: whatever cannot work, before anything is written; also that
      another process works in the directory.
    RunStopped: a disk or bucket does not take what is written.
  """
  validation.validate(config)
  without = contents.named(allow_partial)
  controller.start()
  hosts = hosts_lib.here()
  _check_alike(hosts, config, without)
  opened: list[run_lib.TrainingRun] = []
  with contextlib.ExitStack() as stack:
    # Before anything is read that the run goes on from.
    check = stack.enter_context(holding.held(workdir, hosts))
    mirror = mirror_lib.Mirror(workdir, keeps=hosts.is_lead, check=check)
    used = hosts.of_lead(
        lambda: taking_up.check(
            workdir, config, folder=mirror.folder, override=override_config
        )
    )
    compiles = compile_count.CompileCounter()
    policy = policy_lib.build_policy(config)
    # Left last: closing writes, too.
    stack.enter_context(bearing.full_disk(opened))
    world = parts.build_world(config, policy.tokenizer, policy.template)
    stack.callback(world.close)
    world.interrupt = interrupt
    learner = policy_lib.build_learner(config, policy.decoder, policy.mesh)
    sampler = policy_lib.build_sampler(config, policy)
    stack.enter_context(compiles)
    with _leaves_nothing(mirror.folder):
      run = _build(config, mirror, policy, learner, sampler, world, compiles)
      opened.append(run)
      watchdog = watchdog_lib.Watchdog(
          config.faults.device_wall_s,
          lambda what: bearing.hang_report(run, what),
      )
      world.watch = stack.enter_context(watchdog).watch
      _take_up(run, used, without=without, override=override_config)
      stack.callback(run.mirror.push)
      stack.callback(run.checkpoints.close)
      stack.callback(run.profiler.close)
      stack.callback(run.writer.close)
      run.align()
      run.gates.pass_(
          gates.Gate.ALIGNED,
          'the sampler agrees with the trainer'
          if config.alignment.enabled
          else 'not checked (alignment.enabled = False)',
      )
    stack.enter_context(run.progress)
    yield run
  # The lead may have files to copy: none leaves before it is done.
  hosts.exchange(None)


@contextlib.contextmanager
def _leaves_nothing(folder: str) -> Iterator[None]:
  """Leaves a folder as it was where a first start in it fails."""
  is_first = all(map(lease_files.is_lease, os.listdir(folder)))
  try:
    yield
  except Exception:
    if is_first:
      # Whoever made the folder removes it.
      for path in pathlib.Path(folder).iterdir():
        if path.is_dir():
          shutil.rmtree(path, ignore_errors=True)
        elif not lease_files.is_lease(path.name):
          path.unlink(missing_ok=True)
    raise


def _check_alike(
    hosts: hosts_lib.Hosts,
    config: schema.ExperimentConfig,
    without: Sequence[str],
) -> None:
  """Refuses processes that were started with different settings."""
  for index, (other, parts) in enumerate(hosts.exchange((config, without))):
    names = loading.differences(other, config)
    if set(parts) != set(without):
      names.append('--allow_partial')
    if names:
      raise ValueError(
          f'process {hosts.index} and process {index} of this run have'
          f' different settings: {", ".join(names)}; start all of them with the'
          ' same command and files.'
      )


def _build(config, mirror, policy, learner, sampler, world, compiles):
  workdir = mirror.folder
  gathered = gathering.Gathering(
      config,
      world.tasks('train'),
      deterministic_verifier=world.verifier.deterministic,
  )
  os.makedirs(os.path.join(workdir, 'rollouts'), exist_ok=True)
  gae = config.advantage.estimator == 'gae'
  state = learner.init_state(policy.params, with_critic=gae)
  if gae:
    pretrained = value_head.load(
        config.model.path, policy.decoder, mesh=policy.mesh
    )
    state = critic_start.apply(state, pretrained, config.critic)
  reference = None
  if config.kl.in_ != 'none':
    # The base below adapters is the reference as it is.
    reference = state.base or learner.residence.store(
        'reference', jax.tree.map(jax.numpy.copy, state.policy_params)
    )
  frozen = state.base or reference
  updater = update_lib.Updater(
      learner,
      batching=config.batching,
      critic=config.critic,
      kl=config.kl,
      policy=config.policy,
      reference=reference,
  )
  checkpoints = store_lib.CheckpointStore(
      os.path.join(mirror.workdir, 'checkpoints'),
      config.checkpoint,
      world.hosts,
      cleans=True,
  )
  progress = figures.Progress(quiet=not world.hosts.is_lead)
  return run_lib.TrainingRun(
      config=config,
      workdir=workdir,
      mirror=mirror,
      world=world,
      policy=policy,
      learner=learner,
      updater=updater,
      sampler=sampler,
      state=state,
      gathering=gathered,
      eval_tasks=world.tasks('eval'),
      checkpoints=checkpoints,
      writer=None,
      progress=progress,
      reference_id=config.model.path,
      reference_hash=frozen and fingerprint.fingerprint(frozen),
      compiles=compiles,
      watch=critic_figures.CriticWatch(config),
      warm_up=warm_up.WarmUp(config.critic),
      profiler=profiling.Profiler(config.log, workdir),
      serving=serving_lib.Serving(sampler, config.faults, world.hosts),
      gates=gates.Gates(config.resume, has_critic=gae, note=progress.note),
  )


def _take_up(run, used, *, without, override) -> None:
  """Restores what is there, and lets the sampler serve it (O8)."""
  changed = used or {}

  def check(host: Mapping[str, Any]) -> None:
    workdir, how = run.mirror.workdir, {'override': override}
    # The work directory may have lost its settings.
    if used is None and 'config' in host:
      before = loading.from_dict(host['config'])
      changed.update(taking_up.compare(workdir, before, run.config, **how))
    before = host.get('reference_hash')
    changed.update(
        taking_up.compare_reference(
            workdir, run.reference_id, before, run.reference_hash, **how
        )
    )

  found = resuming.restore(run, without=without, check=check)
  workdir = run.workdir
  # Other verbs read the settings that hold now.
  loading.save(run.config, os.path.join(workdir, 'config.json'))
  if changed:
    incidents.settings(workdir, run.update_index, changed)
  run.gates.pass_(gates.Gate.RESTORED, f'update {run.update_index}')
  goes_on = used is not None or found is not None
  run.writer = writers.open_run(
      workdir,
      # The others write to folders of their own, which are new.
      resume_step=(
          run.update_index if goes_on and run.world.hosts.is_lead else None
      ),
      kept=found['metrics'] if found else (),
  )
  with run.world.watch('the publication of weights'):
    run.serving.publish(run.version, run.state.policy_params, 'drain')
  run.gates.pass_(
      gates.Gate.SYNCED, f'the sampler serves version {run.version}'
  )
