"""For PyTorch. Needs the extra `windlass[torch]`."""

from windlass.torch.data_parallel import DataParallel
from windlass.torch.embedding import Embedding, EmbeddingBag, lookup
from windlass.torch.functions import evaluate, get_params, split_batch, train_batch
from windlass.torch.optim import Optim
from windlass.torch.optimizer import Optimizer
from windlass.torch.prefetch import prefetch
from windlass.torch.scaling import ScaledLR, scale_lr
from windlass.torch.wrapped import wrap

__all__ = [
    "DataParallel",
    "Embedding",
    "EmbeddingBag",
    "Optim",
    "Optimizer",
    "ScaledLR",
    "evaluate",
    "get_params",
    "lookup",
    "prefetch",
    "scale_lr",
    "split_batch",
    "train_batch",
    "wrap",
]
