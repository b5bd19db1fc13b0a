"""A folder in, two checkpoints of a tiny BERT in it out, written by TensorFlow itself (2.21.0, `tensorflow-cpu`).

`model.ckpt-7` is one shard and holds what a training run leaves: weights, both moments of Adam, the step and the powers
of beta. `sharded.ckpt` holds the weights alone in two shards. `test_weights_tf1.py` recomputes every value.

    python tests/golden/tf1_tiny/make.py tests/golden/tf1_tiny
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

VOCABULARY, POSITIONS, LAYERS, HIDDEN, FFN = 16, 8, 2, 8, 16


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (VOCABULARY, HIDDEN),
        "bert/embeddings/position_embeddings": (POSITIONS, HIDDEN),
        "bert/embeddings/token_type_embeddings": (2, HIDDEN),
    }
    dense = {
        "attention/self/query": (HIDDEN, HIDDEN),
        "attention/self/key": (HIDDEN, HIDDEN),
        "attention/self/value": (HIDDEN, HIDDEN),
        "attention/output/dense": (HIDDEN, HIDDEN),
        "intermediate/dense": (HIDDEN, FFN),
        "output/dense": (FFN, HIDDEN),
    }
    kernels = {f"bert/encoder/layer_{n}/{name}": shape for n in range(LAYERS) for name, shape in dense.items()}
    kernels |= {"bert/pooler/dense": (HIDDEN, HIDDEN), "cls/predictions/transform/dense": (HIDDEN, HIDDEN)}
    for name, shape in kernels.items():
        found |= {f"{name}/kernel": shape, f"{name}/bias": shape[1:]}
    norms = ["bert/embeddings", "cls/predictions/transform"]
    norms += [f"bert/encoder/layer_{n}/{part}output" for n in range(LAYERS) for part in ("attention/", "")]
    for name in norms:
        found |= {f"{name}/LayerNorm/gamma": (HIDDEN,), f"{name}/LayerNorm/beta": (HIDDEN,)}
    return found | {
        "cls/predictions/output_bias": (VOCABULARY,),
        "cls/seq_relationship/output_weights": (2, HIDDEN),
        "cls/seq_relationship/output_bias": (2,),
    }


def value_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values that are exact in fp32 and differ from tensor to tensor and from place to place."""
    return (np.arange(np.prod(shape), dtype=np.float32) / 64 + sum(name.encode()) % 97 - 48).reshape(shape)


def save(path: Path, values: dict[str, np.ndarray], *, num_shards: int) -> None:
    config = tf.ConfigProto(device_count={"CPU": num_shards})
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        for place, (name, value) in enumerate(values.items()):
            with tf.device(f"/cpu:{place % num_shards}"):
                tf.get_variable(name, initializer=tf.constant(value), use_resource=False)
        session.run(tf.global_variables_initializer())
        saver = tf.train.Saver(sharded=num_shards > 1)
        saver.save(session, str(path), write_meta_graph=False, write_state=False)


def main(folder: Path) -> None:
    weights = {name: value_of(name, shape) for name, shape in shapes().items()}
    leftovers = {f"{name}/{slot}": value * 0.5 for name, value in weights.items() for slot in ("adam_m", "adam_v")}
    leftovers |= {"beta1_power": np.float32(0.9), "beta2_power": np.float32(0.999), "global_step": np.int64(7)}
    save(folder / "model.ckpt-7", weights | leftovers, num_shards=1)
    save(folder / "sharded.ckpt", weights, num_shards=2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
