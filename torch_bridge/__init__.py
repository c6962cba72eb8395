"""The PyTorch side of plateau-jax: the same curve, as a scheduler."""

from torch_bridge.scheduler import get_cosine_plateau_schedule_with_warmup, lambda_lr

__all__ = ["get_cosine_plateau_schedule_with_warmup", "lambda_lr"]
