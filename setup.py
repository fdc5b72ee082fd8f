"""Package rl-tpu: what it needs and the console script `rl-tpu`."""

import setuptools

setuptools.setup(
    name='rl-tpu',
    version='0.1.0',
    description='Reinforcement learning of language-model agents on TPUs.',
    packages=setuptools.find_packages(include=['rl_tpu', 'rl_tpu.*']),
    python_requires='>=3.11',
    install_requires=[
        'absl-py>=2.3',
        'flax>=0.12.8',
        'grain>=0.2.18',
        'jax>=0.10.2,<0.11',
        'jinja2>=3.1',
        'numpy>=2.0',
        'optax>=0.2.8',
        'orbax-checkpoint>=0.12.8',
        'pillow>=12.0',
        'protobuf>=5.28',
        'rich>=15.0',
        'safetensors>=0.8',
        'tensorboardX>=2.6.5',
        # Imported by google-jetstream, which is installed without its own
        # dependencies (launch/setup.sh).
        'tiktoken>=0.14',
        'tokenizers>=0.23',
    ],
    extras_require={
        # tests.chaos sees by it where a run stands that it is about to kill.
        'chaos': ['py-spy>=0.4.1'],
        # Tasks from Parquet files; JSONL needs nothing.
        'data': ['pyarrow>=26.0'],
        # Models from GGUF files.
        'gguf': ['gguf>=0.19'],
        # The whole wheel with TensorFlow, for whoever wants it.
        'jetstream': ['google-jetstream==0.2.2'],
        # And cosmic-ray without its dependencies (launch/setup.sh).
        'mutation': ['attrs>=25.4', 'parso>=0.8.5'],
        'parity': ['torch>=2.13', 'transformers>=5.24'],
        # A run on a TPU pod: the chips, gs:// and Pathways.
        'pod': ['gcsfs>=2026.8', 'libtpu', 'pathwaysutils>=0.1.13'],
        'tasks': ['reasoning-gym>=0.1.25'],
        'test': ['hypothesis>=6.170', 'pytest>=9.2', 'pytest-xdist>=3.8'],
        'tpu': ['libtpu'],
        'viz': ['tensorboard>=2.21', 'xprof>=2.24'],
    },
    entry_points={'console_scripts': ['rl-tpu = rl_tpu.cli.main:run']},
)
