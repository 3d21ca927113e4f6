"""Convolutional encoders of images: bytes in, features out (tasks.md 2).

Images come as bytes and are divided by 255 here, once. Layers are built without values and filled by name, like all of
a network. Axes: .. any leading axes, P bytes of all images.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name in every torch text

from worker.rl.layers import linear, with_memory

Image = tuple[int, int, int]
#: Least edge that the strides of the large encoder leave something of.
_NATURE_EDGE = 36
#: (channels, kernel, stride) of each convolution, and the units after them.
_Layers = tuple[tuple[tuple[int, int, int], ...], int]
#: Mnih et al. 2015, "Human-level control through deep reinforcement learning", methods.
_NATURE: _Layers = (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512)
_SMALL: _Layers = (((16, 3, 1), (32, 3, 1)), 128)
_MAX_BYTE = 255.0


class Encoder(nn.Module):
    """Features of one image.

    Args:
        image: channels, height and width.
        kind: ``auto`` (by the size of the image), ``nature``, ``small``, or ``none``: the values as they are.

    Raises:
        ValueError: the image is too small for the encoder.
    """

    def __init__(self, image: Image, kind: str) -> None:
        super().__init__()
        self.image, edge = image, min(image[1:])
        if kind == "auto":
            kind = "nature" if edge >= _NATURE_EDGE else "small"
        layers, self.width = {"nature": _NATURE, "small": _SMALL}.get(kind, ((), 0))
        if edge < {"nature": _NATURE_EDGE, "small": 5}.get(kind, 0):
            raise ValueError(f"net.encoder={kind!r} cannot read an image of {image[1]} x {image[2]}; use none")
        channels, height, width = image
        convolutions = []
        for out, kernel, stride in layers:
            convolutions.append(with_memory(nn.Conv2d(channels, out, kernel, stride, device="meta")))
            channels, height, width = out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.convolutions = nn.ModuleList(convolutions)
        size = channels * height * width
        self.width = self.width or size
        self.last = linear(size, self.width) if layers else None

    def forward(self, pixels: Tensor) -> Tensor:
        """Return features [N, width] of bytes [N, channels * height * width]."""
        x = pixels.float() / _MAX_BYTE
        if self.last is None:
            return x
        x = x.view(-1, *self.image)
        for layer in self.convolutions:
            x = F.relu(layer(x))
        return F.relu(self.last(x.flatten(1)))


class Encoders(nn.Module):
    """One encoder for each image of an observation."""

    def __init__(self, images: Sequence[Image], kind: str) -> None:
        super().__init__()
        encoders = [Encoder(image, kind) for image in images]
        self.each = nn.ModuleList(encoders)
        self.width = sum(encoder.width for encoder in encoders)
        self._sizes = [channels * height * width for channels, height, width in images]

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the features [.., width] of all images of observations [.., P]."""
        parts = torch.split(pixels.reshape(-1, pixels.shape[-1]), self._sizes, dim=1)
        found = [encoder(part) for encoder, part in zip(self.each, parts, strict=True)]
        return torch.cat(found, dim=1).view(*pixels.shape[:-1], self.width)
