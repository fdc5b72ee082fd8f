"""Makes tests/golden/parity: `python -m tests.models.make_parity [NAME ...]`.

Runs where the extra `parity` is installed (torch on the CPU, transformers);
it does not import rl_tpu. `check FOLDER` compares what `python -m
tests.models.parity FOLDER` has exported with the goldens instead.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
from safetensors import numpy as safetensors_numpy
import torch
import transformers

from tests.models import parity_models


def make(kind: str) -> None:
  """Writes one family's config.json and numbers."""
  folder = pathlib.Path(tempfile.mkdtemp())
  config = transformers.AutoConfig.for_model(
      kind, **parity_models.settings(kind)
  )
  torch.manual_seed(0)
  transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
  file = folder / 'model.safetensors'
  shapes = {
      name: list(array.shape)
      for name, array in safetensors_numpy.load_file(file).items()
  }
  content = {
      'transformers': transformers.__version__,
      'config': json.loads((folder / 'config.json').read_text()),
      'tensors': shapes,
  }
  out = parity_models.GOLDEN / kind
  out.with_suffix('.json').write_text(json.dumps(content) + '\n')
  # The same folder again, with numbers that a seed gives.
  parity_models.write_folder(kind, folder)
  model = load(folder)
  numbers = {}
  lengths = {'long': parity_models.LONG, 'short': parity_models.SHORT}
  for label, length in lengths.items():
    logits, hidden = run(model, parity_models.ids(length))
    numbers[f'{label}_logits'], numbers[f'{label}_hidden'] = logits, hidden
  check_padding(model, numbers)
  np.savez_compressed(out.with_suffix('.npz'), **numbers)
  size = sum(out.with_suffix(s).stat().st_size for s in ('.json', '.npz'))
  print(f'{kind}: {size / 1024:.0f} KB, logits to {np.abs(logits).max():.2f}')


def load(folder: pathlib.Path):
  """The model in float32 with the plain attention."""
  return transformers.AutoModelForCausalLM.from_pretrained(
      folder,
      local_files_only=True,
      dtype=torch.float32,
      attn_implementation='eager',
      experts_implementation='eager',
  ).eval()


def run(model, ids: np.ndarray, pads: int = 0) -> tuple[np.ndarray, np.ndarray]:
  """Logits and normed hidden states of one sequence, padded on the left."""
  token = torch.tensor([[0] * pads + [int(i) for i in ids]])
  mask = torch.ones_like(token)
  mask[:, :pads] = 0
  with torch.no_grad():
    out = model.model(
        input_ids=token,
        attention_mask=mask,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        use_cache=False,
    )
    hidden = out.last_hidden_state
    logits = model(
        input_ids=token,
        attention_mask=mask,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        use_cache=False,
    ).logits
  return logits[0, pads:].numpy(), hidden[0, pads:].numpy()


def check_padding(model, numbers) -> None:
  """The reference itself does not depend on the padding."""
  ids = parity_models.ids(parity_models.SHORT)
  logits, _ = run(model, ids, pads=parity_models.LONG - parity_models.SHORT)
  np.testing.assert_allclose(logits, numbers['short_logits'], atol=1e-4)


def make_gradients(name: str) -> None:
  """Writes what autograd gives for one objective (parity_models.GRADIENTS)."""
  kind = parity_models.GRADIENTS[name]
  with tempfile.TemporaryDirectory() as folder:
    parity_models.write_folder(kind, pathlib.Path(folder))
    model = load(pathlib.Path(folder))
  # Autograd leaves the row of the padding id out, wherever it is read.
  model.get_input_embeddings().padding_idx = None
  head = torch.tensor(
      parity_models.noise('value head', model.config.hidden_size),
      requires_grad=True,
  )
  numbers, loss, count = {}, 0.0, 0
  for sign, length in ((1.0, parity_models.LONG), (-1.0, parity_models.SHORT)):
    token = torch.tensor([[int(i) for i in parity_models.ids(length)]])
    mask = torch.tensor(parity_models.is_action(length)[1:])
    noise = lambda what: torch.tensor(
        parity_models.noise(f'{what} {length}', length)[1:]
    )
    out = model(input_ids=token, use_cache=False, output_hidden_states=True)
    every = torch.log_softmax(out.logits[0, :-1].float(), dim=-1)
    logp = every.gather(1, token[0, 1:, None])[:, 0]
    base = (logp + 0.4 * noise('base')).detach()
    reference = (logp + 0.5 * noise('reference')).detach()
    numbers[f'base_{length}'] = base.numpy()
    numbers[f'reference_{length}'] = reference.numpy()
    if name == 'critic':
      value = (out.hidden_states[-1][0, :-1] @ head)
      term = 0.5 * (value - noise('return')) ** 2
    else:
      advantage = sign if name == 'grpo' else noise('advantage')
      ratio = torch.exp(logp - base)
      low, high = parity_models.CLIP
      clipped = torch.clamp(ratio, 1.0 - low, 1.0 + high)
      term = -torch.minimum(ratio * advantage, clipped * advantage)
    if name == 'grpo':
      gap = reference - logp
      term = term + parity_models.KL_COEF * (torch.exp(gap) - gap - 1.0)
    if name == 'ppo':
      entropy = -(torch.exp(every) * every).sum(-1)
      term = term - parity_models.ENTROPY_COEF * entropy
    loss = loss + term[mask].sum()
    count += int(mask.sum())
  (loss / count).backward()
  gradients = dict(file_gradients(model))
  if name == 'critic':
    gradients['value_head'] = head.grad.numpy()
  for tensor, gradient in gradients.items():
    numbers[tensor] = parity_models.summary(tensor, gradient)
  numbers['loss'] = (loss / count).detach().numpy()
  np.savez_compressed(parity_models.GOLDEN / f'gradient_{name}.npz', **numbers)
  print(f'{name}: loss {numbers["loss"]:.4f}, {len(gradients)} tensors')


def file_gradients(model):
  """Gradients under the names of the files, one expert each."""
  for name, parameter in model.named_parameters():
    if parameter.grad is None:  # Of an output layer that nothing reads.
      continue
    gradient = parameter.grad.numpy()
    if '.experts.' not in name:
      yield name, gradient
      continue
    prefix, kind = name.rsplit('.', 1)
    for expert, part in enumerate(gradient):
      if kind == 'down_proj':
        yield f'{prefix}.{expert}.down_proj.weight', part
      else:
        for half, each in zip(('gate', 'up'), np.split(part, 2)):
          yield f'{prefix}.{expert}.{half}_proj.weight', each


def check(folder: pathlib.Path) -> None:
  """Loads what rl_tpu exported and compares it with the goldens."""
  for kind in sorted(path.name for path in folder.iterdir()):
    golden = np.load((parity_models.GOLDEN / kind).with_suffix('.npz'))
    model = load(folder / kind)
    logits, _ = run(model, parity_models.ids(parity_models.LONG))
    gap = np.abs(logits - golden['long_logits']).max()
    print(f'{kind:12s} {gap:.1e}')


if __name__ == '__main__':
  if sys.argv[1:2] == ['check']:
    check(pathlib.Path(sys.argv[2]))
  else:
    parity_models.GOLDEN.mkdir(parents=True, exist_ok=True)
    every = (*parity_models.CONFIGS, *parity_models.GRADIENTS)
    for each in sys.argv[1:] or every:
      (make if each in parity_models.CONFIGS else make_gradients)(each)
