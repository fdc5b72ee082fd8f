"""The settings of an experiment: one frozen dataclass per room.

A field's docstring line is what `--help` style tables and error messages show.
A name that ends in an underscore (`kl.in_`) is written without it on the
command line (`kl.in`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from rl_tpu.config import data_schema
from rl_tpu.config import fault_schema
from rl_tpu.config import group_schema
from rl_tpu.config import objective_schema
from rl_tpu.config import offpolicy_schema
from rl_tpu.types import budget as budget_lib
from rl_tpu.types import support as support_lib
from rl_tpu.types import termination as term


# Sections with a module of their own.
GroupConfig = group_schema.GroupConfig
GigpoConfig = group_schema.GigpoConfig
FaultsConfig = fault_schema.FaultsConfig
ResumeConfig = fault_schema.ResumeConfig
RewardConfig = data_schema.RewardConfig
DataConfig = data_schema.DataConfig
ClipConfig = objective_schema.ClipConfig
DisConfig = objective_schema.DisConfig
GspoConfig = objective_schema.GspoConfig
CispoConfig = objective_schema.CispoConfig
PolicyConfig = objective_schema.PolicyConfig
LossConfig = objective_schema.LossConfig
KlConfig = objective_schema.KlConfig
LimitsConfig = objective_schema.LimitsConfig
StalenessConfig = offpolicy_schema.StalenessConfig
AlignmentConfig = offpolicy_schema.AlignmentConfig
AlarmConfig = offpolicy_schema.AlarmConfig


def _mapping(**values: Any) -> Any:
  return dataclasses.field(default_factory=lambda: dict(values))


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Sizes of the mesh axes; -1 takes what is left of the devices.

  Attributes:
    data: parts of the rows.
    fsdp: parts of the rows, and of every parameter.
    tensor: parts of heads, feed-forward layers and vocabulary.
    expert: parts of the rows, and of the experts of a mixture.
  """

  data: int = -1
  fsdp: int = 1
  tensor: int = 1
  expert: int = 1


@dataclasses.dataclass(frozen=True)
class LoraConfig:
  """Low-rank adapters of actor and critic over one frozen base (2106.09685).

  Attributes:
    rank: inner size of an adapter; 0 trains all parameters.
    alpha: what an adapter adds is multiplied by alpha / rank.
    targets: modules of a layer: query, key, value, out, gate, up, down.
  """

  rank: int = 0
  alpha: float = 16.0
  targets: tuple[str, ...] = (
      'query', 'key', 'value', 'out', 'gate', 'up', 'down'
  )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """The start of actor, critic and reference.

  Attributes:
    path: Hugging Face folder (config.json, *.safetensors, tokenizer.json).
    chat_template: file with the chat template, in jinja2; empty takes the
      folder's own. A model that only writes text on has none.
    template_variables: JSON values of what the template reads beside messages
      and tools, by name, such as Qwen3's enable_thinking.
    dtype: dtype of activations: float32 or bfloat16. Parameters are float32.
    remat: what the backward pass computes again: none (every matrix product is
      kept), attention (all but each layer's input and its attention), layer
      (all but each layer's input).
    attention: of training and scoring: xla, splash (a TPU kernel that needs
      rows of a multiple of 128 tokens), or auto: splash on TPUs.
    logits_chunk: tokens whose logits exist at once; no [B, T, V] array does.
    lora: low-rank adapters.
  """

  path: str = ''
  chat_template: str = ''
  template_variables: Mapping[str, Any] = _mapping()
  dtype: str = 'float32'
  remat: str = 'layer'
  attention: str = 'auto'
  logits_chunk: int = 2048
  lora: LoraConfig = LoraConfig()


@dataclasses.dataclass(frozen=True)
class TargetConfig:
  """A class by import path (`module:Class`) and its keyword settings."""

  target: str = ''
  settings: Mapping[str, Any] = _mapping()


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
  """The environment class and where it runs.

  Attributes:
    target: import path, `module:Class`.
    settings: keyword arguments of the class.
    isolation: inline (same process, must not block) or process.
    workers: worker processes; these and the limits below are of
      isolation = process.
    start_timeout_s: wall limit of a worker's start, and of building an
      environment.
    step_timeout_s: wall limit of reset, of a step and of every other call.
    close_timeout_s: wall limit of closing an environment.
    start_retries: fresh environments that a rollout is given whose start fails:
      building it or reset, before a token is sampled. Nothing else is retried.
    memory_gib: address space of a worker; None is no limit.
  """

  target: str = ''
  settings: Mapping[str, Any] = _mapping()
  isolation: str = 'inline'
  workers: int = 4
  start_timeout_s: float = 60.0
  step_timeout_s: float = 10.0
  close_timeout_s: float = 10.0
  start_retries: int = 1
  memory_gib: float | None = None


@dataclasses.dataclass(frozen=True)
class VerifierConfig:
  """The verifier class; it runs in worker processes under a wall limit.

  Attributes:
    target: import path, `module:Class`.
    settings: keyword arguments of the class.
    workers: worker processes.
    start_timeout_s: wall limit of a worker's start, and of its imports.
    timeout_s: wall limit of one score, which is never tried again.
    memory_gib: address space of a worker; None is no limit.
    rescore_share: share of the scored rollouts that is scored a second time
      from the same input (D8; guess).
  """

  target: str = ''
  settings: Mapping[str, Any] = _mapping()
  workers: int = 1
  start_timeout_s: float = 60.0
  timeout_s: float = 10.0
  memory_gib: float | None = None
  rescore_share: float = 0.01


@dataclasses.dataclass(frozen=True)
class IsolationConfig:
  """What the worker processes of environments and verifiers are given.

  Attributes:
    pass_variables: names of environment variables, beside PATH, HOME, LANG,
      TMPDIR and PYTHONPATH; no other variable of the trainer reaches them.
  """

  pass_variables: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class TasksConfig:
  """The task source: a class with `__len__` and `__getitem__` -> Task.

  Attributes:
    target: import path; called with `split` ('train' or 'eval') and settings.
    settings: keyword arguments of the class.
    shuffle: draw a new order every epoch, from the run's seed.
  """

  target: str = ''
  settings: Mapping[str, Any] = _mapping()
  shuffle: bool = True


@dataclasses.dataclass(frozen=True)
class CompactionConfig:
  """What happens when a segment nears its window.

  Attributes:
    mode: off (a full window ends the run), window (compact when what comes
      next does not fit), fixed (compact after `every_turns` turns).
    author: policy (writes the summary, its tokens are actions) or runtime.
    every_turns: turns between compactions with mode = fixed.
    lookahead: tokens that the exchange after a new prompt is expected to
      take; where they do not fit, the window is compacted before the prompt.
    observation_reserve: tokens kept free for what the environment says next.
    max_summary_tokens: limit of a summary the policy writes, stop included.
    request: user message that asks the policy for a summary.
    carry: user message that carries a summary into the next window; holds
      `{summary}` once.
    summary_in_policy_loss: summary tokens train the actor (G16).
  """

  mode: str = 'window'
  author: str = 'policy'
  every_turns: int = 4
  lookahead: int = 0
  observation_reserve: int = 8
  max_summary_tokens: int = 32
  request: str = 'summary'
  carry: str = 'saved: {summary}'
  summary_in_policy_loss: bool = True


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
  """How tokens are drawn, and what may be drawn (R5, O5).

  Attributes:
    temperature: 1 draws from the policy itself; training refuses 0.
    top_k: 0 is off.
    top_p: 1 is off.
    min_p: 0 is off.
    stop: texts of single tokens that end a turn; empty takes the end tokens
      that the model folder names (generation_config.json).
    max_turn_tokens: sampled tokens of one turn at most, stop included.
    max_support: with top_k, top_p or min_p, ids of a token's support that are
      recorded and replayed at most; a rollout with a larger one is discarded.
    allow_unreplayable: trains without the record of supports, against a
      baseline that the trainer computes; ratios to the sampler are not valid.
  """

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  stop: tuple[str, ...] = ('\n',)
  max_turn_tokens: int = 32
  max_support: int = 256
  allow_unreplayable: bool = False

  @property
  def truncates(self) -> bool:
    """True where the support is smaller than the vocabulary (O5)."""
    return support_lib.truncates(self.top_k, self.top_p, self.min_p)

  @property
  def recorded_support(self) -> int:
    """Ids of a support that travel with each token; 0 where none do."""
    is_recorded = self.truncates and not self.allow_unreplayable
    return self.max_support if is_recorded else 0


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
  """The decode engine.

  Attributes:
    slots: sequences decoded at once; divided over the mesh's batch axes.
    tokens_per_call: decode steps of one `generate` call (K).
    prefill_buckets: padded prompt lengths, ascending; one compile each.
    prefill_rows: prompts of one prefill call.
    sync: drain, inflight or restart: what a weight push does to live requests.
    publish: keep the old weights until the new ones are there, or replace:
      free them first, which saves the memory of one copy.
    devices: decode on the first so many devices instead of the whole mesh; 0
      is the whole mesh. Weights are resharded by each push.
    check_every: exchanges between two comparisons of the scheduler's state
      over the processes of a run, to find where they part; 0 is off.
    deterministic: what is sampled depends on its request alone, to the last
      bit, and not on when the environments of others answer: every turn reads
      its whole prompt again, and the cache has its full length (O9).
  """

  slots: int = 64
  tokens_per_call: int = 8
  prefill_buckets: tuple[int, ...] = (64, 128)
  prefill_rows: int = 16
  sync: str = 'drain'
  publish: str = 'keep'
  devices: int = 0
  check_every: int = 0
  deterministic: bool = False


@dataclasses.dataclass(frozen=True)
class LambdaConfig:
  """G11: `{fixed: x}` or `{length_adaptive: alpha}`; exactly one is set."""

  fixed: float | None = None
  length_adaptive: float | None = None


@dataclasses.dataclass(frozen=True)
class GaeConfig:
  """Section 3 of the specification.

  Attributes:
    gamma: discount per time unit.
    time_unit: token or turn (G10).
    lambda_policy: trace decay of the advantages.
    lambda_critic: trace decay of the critic's targets.
    cut: continue, reset_trace, cut_terminal or position_scaled (G20).
  """

  gamma: float = 1.0
  time_unit: str = 'token'
  lambda_policy: LambdaConfig = LambdaConfig(fixed=0.95)
  lambda_critic: LambdaConfig = LambdaConfig(fixed=1.0)
  cut: str = 'continue'


@dataclasses.dataclass(frozen=True)
class AdvantageConfig:
  """The estimator and its normalisation (G17, E3 to E6).

  Attributes:
    estimator: gae, or a group estimator: grpo, dr_grpo, rloo, process, gigpo.
    norm: none, batch or source.
    eps: added to the standard deviation.
    std_floor: at or below it (G15) the advantages are only centred.
    min_count: tokens below which a source uses its running statistics.
  """

  estimator: str = 'gae'
  norm: str = 'none'
  eps: float = 1e-8
  std_floor: float = 1e-6
  min_count: int = 64


@dataclasses.dataclass(frozen=True)
class CriticConfig:
  """Section 6.

  Attributes:
    level: token or turn (G19).
    updates_per_actor_update: passes over the batch before the actor's.
    warmup_steps: batches with the actor frozen (C1).
    warmup_min_ev: held-out explained variance, over rollouts with an outcome,
      that the warm-up has to reach before the actor is trained; None is off.
    warmup_max_steps: warm-up batches after which a run that has not reached it
      stops; None is 10 * warmup_steps (guess).
    warmup_updates: critic passes over each warm-up batch.
    holdout_fraction: share of tasks, by hash, that no critic update sees (C7).
    value_clip: e of L4; None is off.
    head_bias: start of the value head's bias (its weights start at 0).
    values: model, or batch_mean: every value is the mean return of the
      batch's scored rollouts, for the comparison that a critic has to win.
    freeze: patterns (`*` stands for anything) of the names of critic
      parameters that keep their start, such as `*/query/*` (C10).
    sharing: separate, or shared_backbone: one network with two heads and one
      optimizer, the actor's (C10).
    head: mse, or hl_gauss: a distribution over bins of the return (C11).
    bins: bins of head = hl_gauss.
    vmin: lower end of the bins.
    vmax: upper end; returns outside are clipped to the bins.
    sigma: width of the target's Gaussian, in bins.
  """

  level: str = 'token'
  updates_per_actor_update: int = 1
  warmup_steps: int = 0
  warmup_min_ev: float | None = None
  warmup_max_steps: int | None = None
  warmup_updates: int = 1
  holdout_fraction: float = 0.0
  value_clip: float | None = None
  head_bias: float = 0.0
  values: str = 'model'
  freeze: tuple[str, ...] = ()
  sharing: str = 'separate'
  head: str = 'mse'
  bins: int = 51
  vmin: float = 0.0
  vmax: float = 1.0
  sigma: float = 0.75


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW with a clipped global norm and a schedule.

  Attributes:
    learning_rate: the peak.
    schedule: constant, linear or cosine, after `warmup_steps`.
    warmup_steps: optimizer steps of linear warm-up.
    decay_steps: optimizer steps until `end_fraction` is reached.
    end_fraction: the last rate over the peak.
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: Adam's epsilon.
    weight_decay: decoupled.
    clip_norm: global norm limit; None is off.
  """

  learning_rate: float = 1e-5
  schedule: str = 'constant'
  warmup_steps: int = 0
  decay_steps: int = 0
  end_fraction: float = 0.1
  b1: float = 0.9
  b2: float = 0.99
  eps: float = 1e-8
  weight_decay: float = 0.0
  clip_norm: float | None = 1.0


@dataclasses.dataclass(frozen=True)
class BatchingConfig:
  """How rollouts become rows (section 3.10, L17).

  Attributes:
    tasks_per_batch: tasks between two weight pushes; times group.size is the
      number of rollouts.
    minibatches: optimizer steps per epoch, cut by rollout.
    epochs: passes of the actor over a batch.
    row_length: tokens of a packed row.
    rows_per_microbatch: rows of one forward and backward pass, divided over
      the mesh's batch axes.
  """

  tasks_per_batch: int = 64
  minibatches: int = 1
  epochs: int = 1
  row_length: int = 256
  rows_per_microbatch: int = 32


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
  """Independent evaluation on held-out tasks.

  Attributes:
    every: updates between evaluations; 0 only before and after.
    tasks: held-out tasks, the first of the split.
    temperatures: one figure each; 0 is greedy.
    final_tasks: tasks of the first and last evaluation; 0 is `tasks`.
    bootstrap: resamples of the interval (A3).
  """

  every: int = 0
  tasks: int = 64
  temperatures: tuple[float, ...] = (1.0, 0.0)
  final_tasks: int = 256
  bootstrap: int = 10000


@dataclasses.dataclass(frozen=True)
class MemoryConfig:
  """Where what is idle waits: device or host. It comes back for its turn.

  Attributes:
    optimizers: moments of actor and critic, at work in their own steps only.
    critic: parameters of the critic, at work in scoring and in its update.
    reference: parameters of the reference, at work in scoring.
  """

  optimizers: str = 'device'
  critic: str = 'device'
  reference: str = 'device'


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """Orbax composite: updates between saves (0 only at the end) and how many."""

  every: int = 0
  keep: int = 2


@dataclasses.dataclass(frozen=True)
class LogConfig:
  """Dashboards.

  Attributes:
    transcripts_every: updates between transcripts.
    histograms_every: updates between histograms.
    source_grad_every: updates between gradient norms per task source, each a
      backward pass of its own (L18); 0 is off.
    profile_first: first update whose device trace is written; 0 is off.
    profile_last: the last one.
  """

  transcripts_every: int = 10
  histograms_every: int = 10
  source_grad_every: int = 0
  profile_first: int = 0
  profile_last: int = 0


@dataclasses.dataclass(frozen=True)
class SftConfig:
  """Supervised warm start on scripted rollouts.

  Attributes:
    target: import path of the scripted policy class.
    settings: keyword arguments of the class.
    steps: optimizer steps.
    rollouts_per_step: fresh demonstrations per step.
    optimizer: its optimizer.
    out: folder that receives the Hugging Face export.
    model: decoder settings for a new model (fields of DecoderConfig).
    tokenizer: import path of a function that returns a tokenizers.Tokenizer.
  """

  target: str = ''
  settings: Mapping[str, Any] = _mapping()
  steps: int = 1000
  rollouts_per_step: int = 16
  optimizer: OptimizerConfig = OptimizerConfig(learning_rate=2e-3)
  out: str = ''
  model: Mapping[str, Any] = _mapping()
  tokenizer: str = ''


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
  """Everything one run is made of.

  Attributes:
    name: shown in reports.
    seed: task order, sampling and initialisation derive from it.
    steps: updates, warm-up included.
    time_limit_s: training seconds after which the run stops in good order;
      None is no limit.
    token_limit: sampled tokens after which it stops in good order, so that runs
      can be compared at equal tokens; None is no limit.
  """

  name: str
  seed: int = 0
  steps: int = 100
  time_limit_s: float | None = None
  token_limit: int | None = None
  mesh: MeshConfig = MeshConfig()
  model: ModelConfig = ModelConfig()
  environment: EnvironmentConfig = EnvironmentConfig()
  verifier: VerifierConfig = VerifierConfig()
  isolation: IsolationConfig = IsolationConfig()
  tasks: TasksConfig = TasksConfig()
  budgets: budget_lib.Budget = budget_lib.Budget()
  compaction: CompactionConfig = CompactionConfig()
  sampling: SamplingConfig = SamplingConfig()
  sampler: SamplerConfig = SamplerConfig()
  reward: RewardConfig = RewardConfig()
  termination: term.TerminationRules = term.TerminationRules()
  data: DataConfig = DataConfig()
  faults: FaultsConfig = FaultsConfig()
  batching: BatchingConfig = BatchingConfig()
  gae: GaeConfig = GaeConfig()
  advantage: AdvantageConfig = AdvantageConfig()
  group: GroupConfig = GroupConfig()
  gigpo: GigpoConfig = GigpoConfig()
  policy: PolicyConfig = PolicyConfig()
  clip: ClipConfig = ClipConfig()
  dis: DisConfig = DisConfig()
  gspo: GspoConfig = GspoConfig()
  cispo: CispoConfig = CispoConfig()
  loss: LossConfig = LossConfig()
  kl: KlConfig = KlConfig()
  limits: LimitsConfig = LimitsConfig()
  staleness: StalenessConfig = StalenessConfig()
  alignment: AlignmentConfig = AlignmentConfig()
  alarm: AlarmConfig = AlarmConfig()
  critic: CriticConfig = CriticConfig()
  actor_optimizer: OptimizerConfig = OptimizerConfig()
  critic_optimizer: OptimizerConfig = OptimizerConfig()
  evaluation: EvaluationConfig = EvaluationConfig()
  memory: MemoryConfig = MemoryConfig()
  checkpoint: CheckpointConfig = CheckpointConfig()
  resume: ResumeConfig = ResumeConfig()
  log: LogConfig = LogConfig()
  sft: SftConfig | None = None
