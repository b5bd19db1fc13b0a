"""Sizes in, a padded Hugging Face BERT that trains as ours does out: what our step is compared with.

It attends over padding with a mask through torch's fused attention and puts its masked-LM head on every position, as
`BertForPreTraining` does. Optimizer, clipping, buckets and arithmetic are ours.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForPreTraining

from benchmarks.bert.comm.hook import CLIP_VARIANTS
from benchmarks.bert.config import Config
from benchmarks.bert.model.bert import BertShape
from benchmarks.bert.optim.groups import decay_groups
from benchmarks.bert.trainer import OPTIMIZERS, Trainer


class PaddedTrainer:
    """Steps of the padded model; arithmetic and loss scale are those of `trainer`."""

    def __init__(self, shape: BertShape, config: Config, trainer: Trainer) -> None:
        model = hugging_face_bert(shape).to(trainer.device)
        self._precision, self._loss_scale = trainer.precision, trainer.loss_scale
        self._ddp = DistributedDataParallel(model, bucket_cap_mb=config.bucket_mb, gradient_as_bucket_view=True)
        self._gradient = CLIP_VARIANTS[config.clip](self._ddp, config.max_norm, trainer.loss_scale)
        self._optimizer = OPTIMIZERS[config.optimizer](
            decay_groups(model, config.weight_decay),
            learning_rate=config.learning_rate,
            betas=(config.beta_1, config.beta_2),
            epsilon=config.epsilon,
        )

    def warm_up(self, padded: dict[str, Tensor]) -> None:
        """Twice, for DDP lays its buckets out anew after the first pass."""
        with self._gradient.discovering():
            for _ in range(2):
                self.step(padded)

    def step(self, padded: dict[str, Tensor]) -> None:
        for inputs in self._gradient.accumulate([padded]):
            with self._precision():
                loss = self._ddp(**inputs).loss
            self._loss_scale.scaled(loss).backward()
        non_finite = self._gradient.found_non_finite()
        self._optimizer.step_unless(non_finite)
        self._optimizer.zero_grad()
        self._loss_scale.update(non_finite)


def hugging_face_bert(shape: BertShape) -> BertForPreTraining:
    """In training mode, its weights drawn by its own rule."""
    model = BertForPreTraining(
        BertConfig(
            vocab_size=shape.num_vocabulary,
            hidden_size=shape.hidden_size,
            num_hidden_layers=shape.num_layers,
            num_attention_heads=shape.num_heads,
            intermediate_size=shape.ffn_size,
            max_position_embeddings=shape.max_length,
            hidden_dropout_prob=shape.dropout,
            attention_probs_dropout_prob=shape.dropout,
            attn_implementation="sdpa",
        )
    )
    model.train()
    return model
