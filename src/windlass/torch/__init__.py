"""For PyTorch. Needs the extra `windlass[torch]`."""

from windlass.torch.optim import Optim

__all__ = ["Optim"]
