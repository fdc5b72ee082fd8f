"""Mistakes of users: the words they type and the files they have.

HERE stands for the folder of a test, which holds `experiment.py`, over a tiny
model in `model/`.
"""

from collections.abc import Callable, Mapping
import dataclasses
import json
import struct
from typing import Any

from tests import tiny

_SFT = tiny.ROOT / 'experiments' / 'arithmetic_tools_sft.py'
EXPERIMENT = """
from rl_tpu.config import overrides
from tests import tiny

def get_config():
  return overrides.apply(tiny.experiment('HERE/model'), {settings!r})
"""
_SCHEMA = """
from rl_tpu.config import schema

def get_config():
  return {returned}
"""
# Another world than the main job's: rows of a file.
_ROWS = (
    'environment.target=rl_tpu.environments.single_turn:SingleTurn',
    'environment.settings={}',
    'tasks.target=rl_tpu.tasks.rows:RowTasks',
    'tasks.settings={"train_file": "HERE/rows.jsonl",'
    ' "eval_file": "HERE/rows.jsonl"}',
    'reward.weights={}',
)
TRAIN = ('train', '--experiment=HERE/experiment.py', '--workdir=HERE/run')
_PLAN = ('plan', '--experiment=HERE/experiment.py')
_CHECK = ('check-data', '--input=HERE/rows.jsonl')
SCORE = ('score', '--model=HERE/model', '--input=HERE/ids.jsonl')
_LLAMA2C = (
    'import-llama2c', '--checkpoint=HERE/model.bin',
    '--tokenizer=HERE/tokenizer.bin', '--out=HERE/out',
)
_WARM_START = ('sft', f'--experiment={_SFT}', '--workdir=HERE/run')
GOOD_ROW = b'{"prompt": "1 + 1", "answer": "2"}\n'

# What becomes of a file: its new bytes, None to take it away, or a function
# of the old ones.
Change = bytes | None | Callable[[bytes], bytes]


@dataclasses.dataclass(frozen=True)
class Case:
  """One mistake.

  Attributes:
    words: of the command line.
    named: what the line has to say.
    files: what is wrong on disk, by path.
  """

  words: tuple[str, ...]
  named: tuple[str, ...]
  files: Mapping[str, Change] = dataclasses.field(default_factory=dict)


def _set(text: str, *named: str, base=TRAIN, files=None) -> Case:
  """A wrong override."""
  return Case((*base, f'--set={text}'), named, files or {})


def _experiment(text: str, *named: str) -> Case:
  """A wrong experiment file."""
  return Case(TRAIN, named, {'experiment.py': text.encode()})


def _returns(text: str, *named: str) -> Case:
  """An experiment file whose get_config() returns something wrong."""
  return _experiment(_SCHEMA.format(returned=text), *named)


def rows(data: bytes, *named: str, words=TRAIN) -> Case:
  """A wrong file of tasks."""
  text = EXPERIMENT.format(settings=list(_ROWS)).encode()
  return Case(words, named, {'experiment.py': text, 'rows.jsonl': data})


def _model(name: str, change: Change, *named: str) -> Case:
  """A wrong file of the model's folder."""
  return Case(TRAIN, named, {f'model/{name}': change})


def _json(**changes: Any) -> Callable[[bytes], bytes]:
  """Other fields of a JSON object."""
  return lambda data: json.dumps(json.loads(data) | changes).encode()


def _header(change: Callable[[dict[str, Any]], Any]) -> Change:
  """Another header of a safetensors file."""

  def edit(data: bytes) -> bytes:
    (size,) = struct.unpack('<Q', data[:8])
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack('<Q', len(text)) + text + data[8 + size :]

  return edit


def _no_numbers(data: bytes) -> bytes:
  """Every number of a safetensors file is NaN."""
  (size,) = struct.unpack('<Q', data[:8])
  return data[: 8 + size] + b'\xff' * (len(data) - 8 - size)


CASES = {
    # Words of the command line.
    'experiment_as_a_module': Case(
        ('train', '--experiment=experiments.my_job', '--workdir=HERE/run'),
        ('--experiment=experiments.my_job', 'no such file'),
    ),
    'experiment_in_another_format': Case(
        ('config', '--experiment=HERE/job.yaml'),
        ('job.yaml', 'not a Python file (.py)'),
        {'job.yaml': b'steps: 3\n'},
    ),
    'setting_as_a_flag': Case(
        (*TRAIN, '--gae.gamma=0.9'),
        ('--gae.gamma=0.9', 'write --set gae.gamma=0.9'),
    ),
    'workdir_is_a_file': Case(
        TRAIN, ('--workdir=HERE/run', 'is a file', 'name a directory'),
        {'run': b'mine'},
    ),
    'workdir_below_a_file': Case(
        ('train', '--experiment=HERE/experiment.py',
         '--workdir=HERE/experiment.py/run'),
        ('--workdir=HERE/experiment.py/run', 'experiment.py is a file'),
    ),
    'workdir_in_another_cloud': Case(
        ('train', '--experiment=HERE/experiment.py', '--workdir=s3://b/run'),
        ('--workdir=s3://b/run', 'gs://'),
    ),
    'workdir_of_another_program': Case(
        TRAIN, ('HERE/run/config.json', '[1]', 'mapping'),
        {'run/config.json': b'[1]'},
    ),
    'workdir_with_half_a_file': Case(
        TRAIN, ('HERE/run/config.json', 'not JSON', 'another run'),
        {'run/config.json': b'{"name": "arith'},
    ),
    'workdir_of_another_version': Case(
        TRAIN, ('HERE/run/config.json', 'gea', 'did you mean gae?'),
        {'run/config.json': b'{"name": "a", "gea": {}}'},
    ),
    'evaluate_another_program': Case(
        ('evaluate', '--workdir=HERE/run'),
        ('HERE/run/config.json', 'gae: 3', 'mapping'),
        {'run/config.json': b'{"name": "a", "gae": 3}'},
    ),
    'evaluate_a_number': Case(
        ('evaluate', '--workdir=HERE/run', '--checkpoint=3'),
        ('--checkpoint=3', 'best', 'latest'),
    ),
    'inspect_without_rollouts': Case(
        ('inspect', '--workdir=HERE/run'),
        ('000001.jsonl', 'no rollouts', '--step'),
        {'run/rollouts/000001.jsonl': b''},
    ),
    'inspect_half_a_line': Case(
        ('inspect', '--workdir=HERE/run'), ('000001.jsonl:1', 'not JSON'),
        {'run/rollouts/000001.jsonl': b'{"schema_version": 2, "roll'},
    ),
    'inspect_what_is_no_dump': Case(
        ('inspect', '--dump=HERE/a.npz'), ('HERE/a.npz', 'no dump'),
        {'a.npz': b'hello', 'a.json': b'{}'},
    ),
    'export_to_a_file': Case(
        ('export', '--workdir=HERE/run', '--out=HERE/out'),
        ('--out=HERE/out', 'a file', 'name a new folder'),
        {
            'out': b'mine',
            'run/config.json': b'{"name": "a", "model": {"path":'
            b' "HERE/model"}}',
        },
    ),
    'export_another_dtype': Case(
        ('export', '--workdir=HERE/run', '--out=HERE/out', '--dtype=fp16'),
        ('--dtype=fp16', 'float32', 'bfloat16'),
    ),
    'plan_a_count_of_chips': Case(
        (*_PLAN, '--topology=v5e-8'), ('--topology=v5e-8', 'v5e:8x8'),
    ),
    'plan_slices': Case(
        (*_PLAN, '--topology=v5e:2x2', '--slices=0'),
        ('--slices=0', 'at least 1'),
    ),
    'plan_to_a_folder_that_is_not_there': Case(
        (*_PLAN, '--topology=v5e:2x2', '--json=HERE/none/plan.json'),
        ('--json=HERE/none/plan.json', 'folder that is there'),
    ),
    'sft_to_a_file': _set(
        'sft.out=HERE/experiment.py', "sft.out='HERE/experiment.py'",
        'name the folder', base=_WARM_START,
    ),
    'sft_of_a_model_with_a_wrong_name': _set(
        'sft.model.widht=32', 'sft.model.widht', 'did you mean width?',
        base=_WARM_START,
    ),
    'import_a_web_page': Case(
        _LLAMA2C, ('model.bin',),
        {
            'model.bin': b'<!DOCTYPE html><html><head>Not found</head></html>',
            'tokenizer.bin': b'',
        },
    ),
    'import_nothing': Case(
        _LLAMA2C, ('HERE/model.bin', 'No such file'), {'tokenizer.bin': b''}
    ),
    # Experiment files.
    'a_name_that_is_not_imported': _experiment(
        'def get_config():\n  return ExperimentConfig("x")\n',
        'experiment.py', 'ExperimentConfig', 'line 2',
    ),
    'an_import_that_fails': _experiment(
        'from rl_tpu.config import scheme\n',
        'experiment.py', "cannot import name 'scheme'", 'line 1',
    ),
    'a_section_with_a_wrong_name': _returns(
        'schema.ExperimentConfig("x", gae=schema.GaeConf())',
        'experiment.py', "no attribute 'GaeConf'", 'line 5',
    ),
    'settings_are_not_changed_in_place': _experiment(
        'from rl_tpu.config import schema\n\ndef get_config():\n'
        '  config = schema.ExperimentConfig("x")\n  config.steps = 3\n',
        'experiment.py', "cannot assign to field 'steps'", 'line 5',
    ),
    'no_name': _returns(
        'schema.ExperimentConfig()', 'experiment.py', "'name'", 'line 5'
    ),
    'no_return': _experiment(
        'def get_config():\n  pass\n', 'experiment.py', 'NoneType',
        'ExperimentConfig',
    ),
    'an_argument': _experiment(
        'def get_config(size):\n  pass\n', 'experiment.py', "'size'"
    ),
    'a_section_as_a_dictionary': _returns(
        'schema.ExperimentConfig("x", gae={"gamma": 1.0})',
        "gae: {'gamma': 1.0}", 'GaeConfig',
    ),
    'text_instead_of_a_list': _returns(
        'schema.ExperimentConfig("x",'
        ' sampling=schema.SamplingConfig(stop="\\n"))',
        "sampling.stop: '\\n'", 'a list',
    ),
    'binary': _experiment('\0', 'experiment.py', 'not Python'),
    'a_program_that_reads_flags': _experiment(
        'import argparse\nparser = argparse.ArgumentParser()\n'
        'parser.add_argument("what")\nparser.parse_args()\n',
        'experiment.py', 'ends the process', 'SystemExit', 'line 4',
        'get_config()',
    ),
    'a_program_that_ends': _experiment(
        'import sys\nprint("usage")\nsys.exit(0)\n',
        'experiment.py', 'ends the process', 'line 3',
    ),
    'a_program_that_asks': _experiment(
        'name = input("name: ")\n', 'experiment.py', 'EOFError', 'line 1'
    ),
    'a_program_that_is_interrupted': _experiment(
        'raise KeyboardInterrupt\n', 'experiment.py', 'KeyboardInterrupt'
    ),
    'a_program_that_ends_when_called': _experiment(
        'def get_config():\n  raise SystemExit("no")\n',
        'experiment.py', 'ends the process', 'line 2',
    ),
    'setup_py': Case(
        ('train', f'--experiment={tiny.ROOT / "setup.py"}',
         '--workdir=HERE/run'),
        ('setup.py', 'ends the process', 'get_config()'),
    ),
    # Overrides.
    'decimal_comma': _set('gae.gamma=0,9', "gae.gamma: '0,9'", 'a number'),
    'seconds_with_a_unit': _set('time_limit_s=5m', "time_limit_s: '5m'"),
    'a_dtype_by_its_short_name': _set(
        'model.dtype=bf16', "model.dtype='bf16'", 'did you mean bfloat16?'
    ),
    'a_model_of_the_hub': _set(
        'model.path=Qwen/Qwen3-8B', "model.path='Qwen/Qwen3-8B'", 'no such'
        ' folder',
    ),
    'weights_instead_of_their_folder': _set(
        'model.path=HERE/model/model.safetensors', 'model.path=', 'folder'
    ),
    'the_class_of_another_section': _set(
        'environment.target=rl_tpu.verifiers.numeric:NumericAnswer',
        'environment.target', 'numeric', 'no spec',
        files={
            'experiment.py': EXPERIMENT.format(
                settings=['environment.settings={}']
            ).encode()
        },
    ),
    'a_module_instead_of_a_class': _set(
        'environment.target=rl_tpu.environments.arithmetic_tools:term',
        'environment.target', 'is a module', 'name a class',
    ),
    'an_environment_of_ones_own_that_is_not_there': _set(
        'environment.target=my_world:World', 'my_world:World',
        'no module my_world', 'importable',
    ),
    'an_environment_of_ones_own_that_raises': Case(
        TRAIN, ('environment.target', 'KeyError', 'line 3'),
        {
            'experiment.py': EXPERIMENT.format(
                settings=[
                    'environment.target=broken_world:World',
                    'environment.settings={}',
                ]
            ).encode(),
            'broken_world.py': b'class World:\n  def __init__(self):\n'
            b'    self.key = {}["key"]\n',
        },
    ),
    'a_lookahead_beyond_the_window': _set(
        'compaction.lookahead=500', 'compaction.lookahead=500',
        'budgets.window',
    ),
    'a_window_beyond_the_model': Case(
        (*TRAIN, '--set=budgets.window=512', '--set=batching.row_length=512',
         '--set=sampler.prefill_buckets=512'),
        ('budgets.window = 512', '256 positions'),
    ),
    'parameters_to_freeze': _set(
        'critic.freeze=["*/kernel_of/*"]', "critic.freeze='*/kernel_of/*'",
        'no parameter',
    ),
    'modules_by_the_names_of_another_library': Case(
        (*TRAIN, '--set=model.lora.rank=4',
         '--set=model.lora.targets=q_proj'),
        ("model.lora.targets='q_proj'", 'query'),
    ),
    # Files of tasks.
    'rows_of_a_table': rows(
        b'prompt,answer\n1 + 1,2\n', 'rows.jsonl:1', 'not JSON'
    ),
    'one_array': rows(
        b'[{"prompt": "1", "answer": "2"}]\n', 'rows.jsonl:1',
        'not a JSON object',
    ),
    'indented_json': rows(
        b'{\n  "prompt": "1",\n  "answer": "2"\n}\n', 'rows.jsonl:1'
    ),
    'rows_in_latin_1': rows(
        GOOD_ROW + '{"prompt": "größe", "answer": "2"}\n'.encode('latin-1'),
        'rows.jsonl:2', 'utf-8',
    ),
    'rows_that_are_packed': rows(b'\x1f\x8b\x08\x00gz', 'rows.jsonl:1'),
    'rows_without_an_answer': rows(
        b'{"prompt": "1", "solution": "2"}\n', 'rows.jsonl:1', "'answer'",
        'solution',
    ),
    'an_answer_that_is_no_number': rows(
        b'{"prompt": "1", "answer": NaN}\n', 'rows.jsonl:1', 'NaN'
    ),
    'roles_of_another_library': rows(
        b'{"messages": [{"role": "human", "content": "1"}], "answer": "2"}\n',
        'rows.jsonl:1', "'messages'", 'user',
    ),
    'a_prompt_longer_than_the_window': rows(
        json.dumps({'prompt': '1 + ' * 300, 'answer': '2'}).encode(),
        'budgets.window = 128', 'at least 1210',
    ),
    'letters_that_the_vocabulary_lacks': rows(
        b'{"id": "big", "prompt": "HELLO", "answer": "2"}\n', 'big',
        'no token',
    ),
    'a_held_out_file_that_is_not_there': Case(
        (*TRAIN, '--set=tasks.settings.eval_file=HERE/held_out.jsonl'),
        ("tasks.settings.eval_file = 'HERE/held_out.jsonl'", 'no such file'),
        {
            'experiment.py': EXPERIMENT.format(settings=list(_ROWS)).encode(),
            'rows.jsonl': GOOD_ROW,
        },
    ),
    'no_file_of_rows': Case(
        TRAIN, ("tasks.settings.train_file = ''", 'name a JSONL'),
        {
            'experiment.py': EXPERIMENT.format(
                settings=[*_ROWS, 'tasks.settings={}']
            ).encode(),
        },
    ),
    'faults_to_name': Case(
        (*_CHECK, '--limit=-3'), ('--limit=-3', '0 faulty rows or more'),
        {'rows.jsonl': GOOD_ROW},
    ),
    'a_template_with_a_mistake': Case(
        (*_CHECK, '--model=HERE/model', '--chat_template=HERE/own.jinja'),
        ('HERE/own.jinja', 'does not compile', 'endfor'),
        {'rows.jsonl': GOOD_ROW, 'own.jinja': b'{% for m in messages %}'},
    ),
    'a_template_in_latin_1': Case(
        (*_CHECK, '--model=HERE/model', '--chat_template=HERE/own.jinja'),
        ('HERE/own.jinja', 'UTF-8'),
        {'rows.jsonl': GOOD_ROW, 'own.jinja': 'größe'.encode('latin-1')},
    ),
    'a_parquet_file_that_is_none': Case(
        ('check-data', '--input=HERE/rows.parquet'), ('rows.parquet',
         'Parquet'),
        {'rows.parquet': b'PAR1 and nothing else'},
    ),
    'ids_in_latin_1': Case(
        SCORE, ('ids.jsonl:1', 'utf-8'),
        {'ids.jsonl': b'{"ids": [1, 2], "text": "\xf6"}\n'},
    ),
    'more_ids_than_positions': Case(
        SCORE, ('ids.jsonl:1', '300 ids', '256 positions'),
        {'ids.jsonl': json.dumps({'ids': [1] * 300}).encode()},
    ),
    # The model's folder.
    'config_of_another_architecture': _model(
        'config.json', _json(model_type='mamba'), 'config.json', "'mamba'",
        'llama',
    ),
    'config_with_text_for_a_number': _model(
        'config.json', _json(rope_theta='10000'), 'config.json', 'rope_theta',
        "'10000'", 'a number',
    ),
    'config_with_a_length_in_words': _model(
        'config.json', _json(max_position_embeddings='2k'), 'config.json',
        'max_position_embeddings', "'2k'", 'a whole number',
    ),
    'config_with_another_scaling': _model(
        'config.json', _json(rope_scaling=[4.0]), 'config.json',
        'rope_scaling', '[4.0]', 'an object',
    ),
    'config_of_quantised_weights': _model(
        'config.json', _json(quantization_config={'quant_method': 'awq'}),
        'config.json', 'quantization_config', 'awq',
    ),
    'config_of_another_width': _model(
        'config.json', _json(hidden_size=32), 'HERE/model', 'lm_head.weight',
        '[48, 16]', '[48, 32]',
    ),
    'weights_cut_off': _model(
        'model.safetensors', lambda data: data[: len(data) // 2],
        'model.safetensors', 'copy the file anew',
    ),
    'weights_that_are_a_pointer': _model(
        'model.safetensors',
        b'version https://git-lfs.github.com/spec/v1\nsize 10\n',
        'model.safetensors', 'Git LFS',
    ),
    'weights_in_another_format': Case(
        TRAIN, ('HERE/model', 'model.safetensors'),
        {'model/model.safetensors': None, 'model/pytorch_model.bin': b'PK'},
    ),
    'weights_of_whole_numbers': _model(
        'model.safetensors',
        _header(lambda header: header['model.norm.weight'].update(dtype='I32')),
        'model.norm.weight', 'I32', 'BF16',
    ),
    'weights_that_are_no_numbers': _model(
        'model.safetensors', _no_numbers, 'model.safetensors', 'NaN',
        'another checkpoint',
    ),
    'tokenizer_that_is_none': _model(
        'tokenizer.json', b'{}', 'tokenizer.json', 'does not parse'
    ),
    'tokenizer_config_of_another_form': _model(
        'tokenizer_config.json', _json(added_tokens_decoder={'3': '<pad>'}),
        'tokenizer_config.json', "'<pad>'", 'save the tokenizer anew',
    ),
    'an_end_that_is_no_id': _model(
        'generation_config.json', b'{"eos_token_id": "</s>"}',
        'generation_config.json', "eos_token_id '</s>'", '48 tokens',
    ),
    'a_template_that_refuses': _model(
        'chat_template.jinja', b"{{ raise_exception('no system role') }}",
        'HERE/model', 'no system role',
    ),
    'a_template_that_shows_nothing': _model(
        'chat_template.jinja', b'', 'HERE/model', 'shows none',
        'model.chat_template',
    ),
    'a_value_head_that_is_none': _model(
        'value_head.safetensors', b'PK', 'value_head.safetensors',
        'copy the file anew',
    ),
    # What strangers write (K52 to K54).
    'K54_a_million_layers': _model(
        'config.json', _json(num_hidden_layers=10**6), 'config.json',
        'num_hidden_layers', '1000000', 'from 1 to',
    ),
    'K54_a_length_without_end': _model(
        'config.json', _json(max_position_embeddings=10**18), 'config.json',
        'max_position_embeddings', '1000000000000000000',
    ),
    'K54_no_length': _model(
        'config.json', _json(max_position_embeddings=None), 'config.json',
        'max_position_embeddings', 'null',
    ),
    'K54_no_epsilon': _model(
        'config.json', _json(rms_norm_eps=None), 'config.json',
        'rms_norm_eps', 'null',
    ),
    'K54_no_factor': _model(
        'config.json',
        _json(rope_scaling={'rope_type': 'linear', 'factor': None}),
        'config.json', 'rope_scaling.factor', 'null',
    ),
    'K54_brackets_without_end': _model(
        'config.json', b'[' * 10**5, 'config.json', '64 deep'
    ),
    'K54_a_key_twice': _model(
        'config.json', lambda data: data.replace(b'{', b'{"a": 1, "a": 1, ', 1),
        'config.json', "'a' twice",
    ),
    'K54_half_of_a_character': _model(
        'generation_config.json', b'{"x": "\\ud800"}',
        'generation_config.json', 'half of a character',
    ),
    'K54_no_map_of_weights': Case(
        TRAIN, ('model.safetensors.index.json', 'weight_map', 'null'),
        {
            'model/model.safetensors': None,
            'model/model.safetensors.index.json': b'{"weight_map": null}',
        },
    ),
    'K54_a_template_without_end': _model(
        'chat_template.jinja', b'x' * 2**21, 'chat_template.jinja',
        '2097152 bytes',
    ),
    'K54_a_tokenizer_of_which_the_library_panics': _model(
        'tokenizer.json',
        _json(model={'type': 'BPE', 'vocab': {'a': 0, 'ab': 1},
                     'merges': [['ab', 'a']]}),
        'tokenizer.json', 'does not parse',
    ),
    'K54_adapters_beside_the_model': _model(
        'adapter_config.json', b'{}', 'adapter_config.json', 'merge them',
    ),
    'K53_a_stop_token_that_the_vocabulary_lacks': _set(
        "sampling.stop=<|im_end|>", "sampling.stop = '<|im_end|>'",
        'no single token',
    ),
}
